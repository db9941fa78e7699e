"""Saved state is whole or refused: truncated, altered, foreign and half-written files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from methods.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    adamw_tensors,
    canonical_digest,
    read_state,
    restore_adamw,
    write_atomic,
    write_state,
)


def checkpoint(update: int) -> Checkpoint:
    weight = torch.full((2, 3), float(update))
    return Checkpoint(
        update=update,
        policy={"weight": weight, "tied": weight},
        optimizer={"weight/exp_avg": weight / 2, "weight/step": torch.tensor(float(update))},
        history=[{"loss": 0.1 * i, "seconds_update": 1e-3} for i in range(update)],
    )


def store_with(folder: Path, *updates: int) -> CheckpointStore:
    store = CheckpointStore(folder, "spec")
    for update in updates:
        store.save(checkpoint(update))
    return store


def no_warning(message: str) -> None:
    pytest.fail(f"unexpected warning: {message}")


def test_round_trip_is_exact(tmp_path: Path) -> None:
    loaded = store_with(tmp_path, 3).load(no_warning)
    expected = checkpoint(3)
    assert loaded is not None
    assert loaded.update == 3
    assert loaded.history == expected.history
    assert loaded.policy.keys() == expected.policy.keys()
    assert torch.equal(loaded.policy["tied"], expected.policy["tied"])
    assert torch.equal(loaded.optimizer["weight/step"], torch.tensor(3.0))


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "absent", "spec").load(no_warning) is None


def test_newest_two_are_kept(tmp_path: Path) -> None:
    store_with(tmp_path, 1, 2, 3, 12)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "state-000003.json",
        "state-000003.safetensors",
        "state-000012.json",
        "state-000012.safetensors",
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda json_path, tensors: tensors.write_bytes(tensors.read_bytes()[:-7]),
        lambda json_path, tensors: tensors.write_bytes(b""),
        lambda json_path, tensors: tensors.unlink(),
        lambda json_path, tensors: json_path.write_text(json_path.read_text()[:-20]),
        lambda json_path, tensors: json_path.write_text(
            json_path.read_text().replace('"update": 2', '"update": 5')
        ),
        lambda json_path, tensors: json_path.write_bytes(b"\xff\x00"),
        lambda json_path, tensors: json_path.write_text("[]"),
        lambda json_path, tensors: json_path.write_text(
            json_path.read_text().replace('"format": 1', '"format": 9')
        ),
    ],
)
def test_damaged_newest_falls_back_with_a_warning(tmp_path: Path, damage) -> None:
    store = store_with(tmp_path, 1, 2)
    damage(tmp_path / "state-000002.json", tmp_path / "state-000002.safetensors")
    warnings: list[str] = []
    loaded = store.load(warnings.append)
    assert loaded is not None
    assert loaded.update == 1
    assert len(warnings) == 1
    assert "Continuing from update 1" in warnings[0]


def test_all_damaged_is_an_error_that_says_what_to_type(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"no usable checkpoint: .*rm -r"):
        store.load(no_warning)


def test_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    store_with(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"written for another run .*rm -r"):
        CheckpointStore(tmp_path, "other").load(no_warning)


def test_kill_between_the_two_files_leaves_the_one_before(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    (tmp_path / "state-000002.json").unlink()
    (tmp_path / ".state-000003.safetensors.1.tmp").write_bytes(b"half")
    loaded = store.load(no_warning)
    assert loaded is not None
    assert loaded.update == 1
    store.save(checkpoint(2))
    assert not list(tmp_path.glob(".*.tmp"))


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("methods.checkpoint.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_file_with_right_digest_but_no_tensors_is_refused(tmp_path: Path) -> None:
    """A digest proves who wrote it, not that it can be read."""
    tensors, record = tmp_path / "a.safetensors", tmp_path / "a.json"
    write_state(tensors, record, {"w": torch.zeros(1)}, {})
    garbage = b"\x08" + bytes(30)
    body = json.loads(record.read_text()) | {"tensors_sha256": hashlib.sha256(garbage).hexdigest()}
    del body["sha256"]
    record.write_text(json.dumps(body | {"sha256": canonical_digest(body)}))
    tensors.write_bytes(garbage)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_state(tensors, record)


def test_restored_adamw_continues_to_the_bit() -> None:
    def make() -> tuple[torch.nn.Linear, torch.optim.AdamW]:
        torch_generator = torch.Generator().manual_seed(0)
        layer = torch.nn.Linear(4, 3)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.normal_(generator=torch_generator)
        return layer, torch.optim.AdamW(layer.parameters(), lr=0.01, fused=True)

    def steps(layer: torch.nn.Linear, optimizer: torch.optim.AdamW, first: int, stop: int) -> None:
        for i in range(first, stop):
            optimizer.zero_grad()
            (layer(torch.full((1, 4), 0.1 * i)) ** 2).sum().backward()
            optimizer.step()

    whole, optimizer = make()
    steps(whole, optimizer, 0, 6)
    half, optimizer = make()
    steps(half, optimizer, 0, 3)
    saved = adamw_tensors(optimizer, {p: n for n, p in half.named_parameters()})
    weights = {name: value.clone() for name, value in half.state_dict().items()}
    resumed, optimizer = make()
    resumed.load_state_dict(weights)
    restore_adamw(optimizer, {p: n for n, p in resumed.named_parameters()}, saved)
    steps(resumed, optimizer, 3, 6)
    assert torch.equal(resumed.weight, whole.weight)
    assert torch.equal(resumed.bias, whole.bias)
