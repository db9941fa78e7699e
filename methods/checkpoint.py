"""Training state on disk: safetensors and JSON, atomic, checked before it is believed.

A checkpoint is two files. ``state-000010.safetensors`` holds the tensors and is written first;
``state-000010.json`` holds the counters, the tensors' SHA-256 and a SHA-256 of itself, and makes
the checkpoint exist. A kill at any moment therefore leaves either the new checkpoint or the one
before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

FORMAT_VERSION = 1


class CheckpointError(RuntimeError):
    """A saved state that cannot be used; the message says which file, why and what to do."""


def canonical_digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON-ready value in canonical form (sorted keys, no spaces).

    Raises:
        ValueError: If the value holds NaN or an infinity.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a reader sees the old file or the new one, never a part.

    Written to a neighbour, flushed to the disk and renamed; the folder is flushed too, so that the
    order in which two files appear survives a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _owned(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    # safetensors refuses tensors that share storage (tied weights), so each gets its own.
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def write_state(
    tensor_path: Path,
    record_path: Path,
    tensors: Mapping[str, torch.Tensor],
    record: Mapping[str, Any],
) -> None:
    """Write tensors and then the JSON record that vouches for them.

    Args:
        tensor_path: Where the safetensors file goes.
        record_path: Where the JSON file goes.
        tensors: Named tensors.
        record: JSON-ready counters; the keys ``format``, ``tensors_sha256`` and ``sha256`` are
            added.
    """
    data = save(_owned(tensors))
    body = {
        **record,
        "format": FORMAT_VERSION,
        "tensors_sha256": hashlib.sha256(data).hexdigest(),
    }
    body["sha256"] = canonical_digest(body)
    write_atomic(tensor_path, data)
    text = json.dumps(body, sort_keys=True, indent=2, allow_nan=False) + "\n"
    write_atomic(record_path, text.encode())


def read_state(
    tensor_path: Path, record_path: Path
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what :func:`write_state` wrote, and check both digests.

    Returns:
        The tensors and the record.

    Raises:
        CheckpointError: If a file is missing, truncated, altered or of another format.
    """
    try:
        body = json.loads(record_path.read_bytes())
        data = tensor_path.read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {record_path.parent}: {error}") from error
    if not isinstance(body, dict):
        raise CheckpointError(f"{record_path} is not a JSON object")
    if body.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"{record_path} has format {body.get('format')!r}; this version reads {FORMAT_VERSION}"
        )
    claimed = body.pop("sha256", None)
    if claimed != canonical_digest(body):
        raise CheckpointError(f"{record_path} does not match its own SHA-256: it was altered")
    if hashlib.sha256(data).hexdigest() != body["tensors_sha256"]:
        raise CheckpointError(f"{tensor_path} does not match its SHA-256: truncated or altered")
    try:
        return load(data), body
    except SafetensorError as error:
        raise CheckpointError(f"{tensor_path} is not a safetensors file: {error}") from error


def adamw_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> dict[str, torch.Tensor]:
    """Moments and step counts by parameter name, for example ``embed.weight/exp_avg``."""
    return {
        f"{names[parameter]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_adamw(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Give ``optimizer`` the state that :func:`adamw_tensors` returned."""
    by_name = {name: parameter for parameter, name in names.items()}
    for key, value in tensors.items():
        name, _, field = key.rpartition("/")
        optimizer.state[by_name[name]][field] = value.clone()


@dataclass(frozen=True)
class Checkpoint:
    """A training state.

    Args:
        update: Updates made so far.
        policy: The policy's state dict.
        optimizer: AdamW's state as :func:`adamw_tensors` gives it.
        history: One flat dict of numbers an update.
    """

    update: int
    policy: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    history: list[dict[str, float]]


class CheckpointStore:
    """The checkpoints of one run in one folder; keeps the newest two.

    Args:
        folder: Where; made on the first save.
        spec_hash: Hash of everything that must be equal for a state to be continued.
    """

    keep = 2

    def __init__(self, folder: Path, spec_hash: str) -> None:
        self.folder = folder
        self.spec_hash = spec_hash

    def _path(self, update: int) -> Path:
        return self.folder / f"state-{update:06d}.safetensors"

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then drop those older than the newest two."""
        tensors = {f"policy:{name}": value for name, value in checkpoint.policy.items()}
        tensors |= {f"adamw:{name}": value for name, value in checkpoint.optimizer.items()}
        record = {
            "spec_hash": self.spec_hash,
            "update": checkpoint.update,
            "history": checkpoint.history,
        }
        path = self._path(checkpoint.update)
        write_state(path, path.with_suffix(".json"), tensors, record)
        for record_path in sorted(self.folder.glob("state-*.json"))[: -self.keep]:
            record_path.unlink(missing_ok=True)
            record_path.with_suffix(".safetensors").unlink(missing_ok=True)
        for remains in self.folder.glob(".state-*.tmp"):  # of a save that was killed
            remains.unlink(missing_ok=True)

    def load(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest good checkpoint, or None where none was ever completed.

        Args:
            warn: Receives one message for each newer checkpoint that had to be passed over.

        Raises:
            CheckpointError: If there are checkpoints but none can be used, or if the newest good
                one belongs to another spec.
        """
        problems: list[str] = []
        for record_path in sorted(self.folder.glob("state-*.json"), reverse=True):
            try:
                tensors, record = read_state(record_path.with_suffix(".safetensors"), record_path)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            if record["spec_hash"] != self.spec_hash:
                raise CheckpointError(
                    f"{record_path} was written for another run (spec {record['spec_hash'][:12]}, "
                    f"this one is {self.spec_hash[:12]}: method, benchmark, seed or base differ). "
                    f"To start this one over: rm -r {self.folder}"
                )
            for problem in problems:
                warn(f"{problem}. Continuing from update {record['update']} instead.")
            return Checkpoint(
                update=record["update"],
                policy=_with_prefix(tensors, "policy:"),
                optimizer=_with_prefix(tensors, "adamw:"),
                history=record["history"],
            )
        if problems:
            raise CheckpointError(
                f"no usable checkpoint: {'; '.join(problems)}. To start over: rm -r {self.folder}"
            )
        return None

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _with_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
