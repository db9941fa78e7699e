"""The base policy: built once, the same bytes each time, shared under a lock, rebuilt if damaged."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from harness.seeding import HashSeeds
from methods.agent import make_policy
from methods.base import Demonstration, Interrupted
from methods.config import AttentionConfig, SupervisedConfig
from methods.supervised import (
    base_recipe,
    build_lock,
    collate,
    demonstrations,
    ensure_base,
    learning_rate,
    train_supervised,
)
from tests.methods.tiny import Recorder, tiny_config, tiny_context, tiny_suite

CONFIG = tiny_config(supervised=SupervisedConfig(steps=4, batch_size=4))


def build(folder: Path, recorder: Recorder | None = None) -> dict[str, torch.Tensor]:
    suite = tiny_suite()
    context = tiny_context(folder, recorder=recorder)
    return ensure_base(
        suite, CONFIG, context, lambda g: make_policy(suite, CONFIG, CONFIG.base_attention, g)
    )


def only_folder(folder: Path) -> Path:
    (found,) = [path for path in (folder / "base").iterdir() if path.is_dir()]
    return found


def test_schedule_warms_up_and_ends_near_zero() -> None:
    config = SupervisedConfig(steps=120, warmup=20, learning_rate=1.0)
    assert learning_rate(0, config) == pytest.approx(0.05)
    assert learning_rate(19, config) == 1.0
    assert learning_rate(70, config) == pytest.approx(0.5)
    assert 0 < learning_rate(119, config) < 1e-3


def test_demonstrations_are_clean_first_and_the_same_each_time() -> None:
    config = SupervisedConfig(steps=8, batch_size=16, noisy_from=0.75)
    first, second = (list(demonstrations(tiny_suite(), config, HashSeeds(0))) for _ in range(2))
    assert first == second
    assert [len(batch) for batch in first] == [16] * 8
    assert first != list(demonstrations(tiny_suite(), config, HashSeeds(1)))

    flags: list[bool] = []
    suite = tiny_suite()
    original = suite.demonstration

    def spy(index: int, *, noisy: bool, seed: int) -> Demonstration:
        flags.append(noisy)
        return original(index, noisy=noisy, seed=seed)

    suite.demonstration = spy  # type: ignore[method-assign]
    list(demonstrations(suite, config, HashSeeds(0)))
    assert flags == [False] * 96 + [True] * 32


def test_collate_pads_with_the_pad_id_and_masks_it() -> None:
    short = Demonstration([5, 6], [False, True], [False, True], [-1, 0])
    long = Demonstration([7, 8, 9], [False, True, True], [False, False, True], [-1, 0, 2])
    tokens, lengths, mask, state = collate([short, long], pad_id=1)
    assert tokens.tolist() == [[5, 6, 1], [7, 8, 9]]
    assert lengths.tolist() == [2, 3]
    assert mask.tolist() == [[False, True, False], [False, False, True]]
    assert state.tolist() == [[-1, 0, -1], [-1, 0, 2]]


def test_loss_falls_and_starts_at_chance() -> None:
    suite = tiny_suite()
    config = SupervisedConfig(steps=30, batch_size=8, noisy_from=1.0)
    policy = make_policy(suite, CONFIG, CONFIG.base_attention, torch.Generator().manual_seed(0))
    losses = train_supervised(
        policy, suite, config, HashSeeds(0), lambda event: None, lambda: False
    )
    # Under the grammar the first token is one of 2, a symbol one of 12 or 13, an <end> often sure.
    assert 0.5 < losses[0] < math.log(13) + 0.5
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]


def test_micro_batches_change_rounding_only() -> None:
    suite = tiny_suite()
    runs = []
    for micro_batch in (1, 3, 8):
        config = SupervisedConfig(steps=2, batch_size=8, micro_batch=micro_batch)
        policy = make_policy(suite, CONFIG, CONFIG.base_attention, torch.Generator().manual_seed(0))
        runs.append(
            train_supervised(policy, suite, config, HashSeeds(0), lambda event: None, lambda: False)
        )
    assert runs[1] == pytest.approx(runs[0], abs=1e-5)
    assert runs[2] == pytest.approx(runs[0], abs=1e-5)


def test_same_bytes_each_time_and_second_call_only_loads(tmp_path: Path) -> None:
    build(tmp_path / "a")
    recorder = Recorder()
    build(tmp_path / "b")
    one, two = only_folder(tmp_path / "a"), only_folder(tmp_path / "b")
    assert one.name == two.name
    for name in ("policy.safetensors", "base.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    build(tmp_path / "a", recorder)
    assert recorder.events == []


def test_progress_has_a_rate(tmp_path: Path) -> None:
    recorder = Recorder()
    build(tmp_path, recorder)
    events = recorder.of("progress", "base")
    assert [event["done"] for event in events] == [1, 2, 3, 4]
    assert all(event["total"] == 4 and event["steps_per_second"] > 0 for event in events)


@pytest.mark.parametrize("name", ["policy.safetensors", "base.json"])
def test_damaged_base_is_built_again_with_a_warning(tmp_path: Path, name: str) -> None:
    expected = build(tmp_path)
    path = only_folder(tmp_path) / name
    good = path.read_bytes()
    path.write_bytes(good[:-9])
    recorder = Recorder()
    rebuilt = build(tmp_path, recorder)
    assert len(recorder.of("warning")) == 1
    assert "Building it again" in recorder.of("warning")[0]["message"]
    assert path.read_bytes() == good
    assert all(torch.equal(rebuilt[key], value) for key, value in expected.items())


def test_stop_leaves_no_base_and_no_lock(tmp_path: Path) -> None:
    recorder = Recorder(stop=lambda events: len(events) >= 2)
    with pytest.raises(Interrupted, match="step 2 of 4"):
        build(tmp_path, recorder)
    assert not list((tmp_path / "base").glob("*/base.json"))
    build(tmp_path)
    assert (only_folder(tmp_path) / "base.json").exists()


def test_fingerprint_covers_what_decides_a_base() -> None:
    suite = tiny_suite()
    reference = base_recipe(suite, CONFIG)
    for changed in (
        dataclasses.replace(CONFIG, base_seed=1),
        dataclasses.replace(CONFIG, base_attention=AttentionConfig(sink_logits=False)),
        dataclasses.replace(CONFIG, supervised=SupervisedConfig(steps=5)),
        dataclasses.replace(CONFIG, shape=dataclasses.replace(CONFIG.shape, d_ff=32)),
    ):
        assert base_recipe(suite, changed) != reference
    # what happens to a base afterwards does not name it: methods share it
    assert base_recipe(suite, dataclasses.replace(CONFIG, attention=AttentionConfig())) == reference
    other = tiny_suite()
    other.fingerprint = "other"
    assert base_recipe(other, CONFIG) != reference
    assert json.loads(json.dumps(reference)) == reference


def _hold_lock_until_killed(path: str, ready: multiprocessing.synchronize.Event) -> None:
    with build_lock(Path(path), lambda event: None, lambda: False):
        ready.set()
        while True:
            multiprocessing.Event().wait(60)


def test_lock_is_waited_for_and_dies_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    spawn = multiprocessing.get_context("fork")
    ready = spawn.Event()
    owner = spawn.Process(target=_hold_lock_until_killed, args=(str(path), ready))
    owner.start()
    try:
        assert ready.wait(20)
        recorder = Recorder(stop=lambda events: True)
        with (
            pytest.raises(Interrupted, match="another process"),
            build_lock(path, recorder.report, recorder.should_stop),
        ):
            pytest.fail("two owners at once")

        def killing_report(event: object) -> None:
            waits.append(event)
            assert owner.pid is not None
            os.kill(owner.pid, 9)

        waits: list[object] = []
        with build_lock(path, killing_report, lambda: False, poll_seconds=0.01):
            assert path.read_text() == str(os.getpid())
        (event,) = waits
        assert f"process {owner.pid} " in event["message"]  # type: ignore[index]
    finally:
        owner.kill()
        owner.join()


def test_second_builder_waits_and_then_loads(tmp_path: Path) -> None:
    """While one holds the lock the other reports it; once it is free the base is there."""
    build(tmp_path)
    lock = only_folder(tmp_path).with_suffix(".lock")
    handle = open(lock, "a+")  # noqa: SIM115
    fcntl.flock(handle, fcntl.LOCK_EX)
    recorder = Recorder()
    original = recorder.report

    def release(event: object) -> None:
        original(event)  # type: ignore[arg-type]
        fcntl.flock(handle, fcntl.LOCK_UN)

    recorder.report = release  # type: ignore[method-assign]
    build(tmp_path, recorder)
    handle.close()
    assert [event["event"] for event in recorder.events] == ["waiting"]
