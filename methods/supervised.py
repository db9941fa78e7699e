"""The base policy: imitation of a scripted expert, built once and shared by all cells.

It plays the part of a pretrained checkpoint: it depends on a base seed of its own, and the cell's
seed drives only what comes after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from methods.base import Interrupted
from methods.checkpoint import CheckpointError, canonical_digest, read_state, write_state
from methods.team import SOLO, Team

if TYPE_CHECKING:
    from methods.base import AgentSuite, Demonstration, RunContext, SeedSource
    from methods.config import MethodConfig, SupervisedConfig
    from methods.policy import SmallPolicy

# Raise it when this module or the policy changes what a base turns out to be.
CODE_VERSION = 1


def base_recipe(suite: AgentSuite, config: MethodConfig) -> dict[str, Any]:
    """Everything that decides a base policy, JSON-ready; its digest names the base."""
    return {
        "code_version": CODE_VERSION,
        "base_attention": dataclasses.asdict(config.base_attention),
        "shape": dataclasses.asdict(config.shape),
        "supervised": dataclasses.asdict(config.supervised),
        "processes": config.processes,
        "base_seed": config.base_seed,
        "suite": {"name": suite.name, "fingerprint": suite.fingerprint},
        "codec_version": suite.codec.version,
        "context": dataclasses.asdict(suite.context),
    }


def learning_rate(step: int, config: SupervisedConfig) -> float:
    """Linear warm-up, then a cosine to zero.

    Args:
        step: Optimiser step, from 0.
        config: Peak rate, warm-up steps, total steps.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def demonstrations(
    suite: AgentSuite, config: SupervisedConfig, seeds: SeedSource, team: Team = SOLO
) -> Iterator[list[Demonstration]]:
    """This process's episodes of each step, clean expert first, then the noisy one.

    Every pass over the train tasks visits them in a fresh random order, and every episode has a
    seed of its own, so the stream is a function of the base seed.

    Args:
        suite: Whose expert.
        config: Steps, batch size, share of the noisy part.
        seeds: Generators of the base seed.
        team: The processes that share the ``batch_size`` episodes of a step.

    Yields:
        This process's share of a step's demonstrations.
    """
    available = suite.num_tasks("train")
    order: list[int] = []
    for step in range(config.steps):
        noisy = step >= config.noisy_from * config.steps
        batch = []
        for number in range(step * config.batch_size, (step + 1) * config.batch_size):
            position = number % available
            if position == 0:
                generator = seeds.numpy("demonstration-order", number // available)
                order = generator.permutation(available).tolist()
            seed = seeds.integer("demonstration", number)
            batch.append((order[position], seed))
        yield [
            suite.demonstration(task, noisy=noisy, seed=seed) for task, seed in team.share_of(batch)
        ]


def collate(batch: Sequence[Demonstration], pad_id: int) -> tuple[torch.Tensor, ...]:
    """Pad demonstrations on the right.

    Returns:
        tokens int64 [B, T], lengths int64 [B], train_mask bool [B, T], grammar_state int64 [B, T].
    """
    size, longest = len(batch), max(len(demo.tokens) for demo in batch)
    tokens = torch.full((size, longest), pad_id, dtype=torch.int64)
    mask = torch.zeros((size, longest), dtype=torch.bool)
    state = torch.full((size, longest), -1, dtype=torch.int64)
    for row, demo in enumerate(batch):
        length = len(demo.tokens)
        tokens[row, :length] = torch.tensor(demo.tokens)
        mask[row, :length] = torch.tensor(demo.train_mask)
        state[row, :length] = torch.tensor(demo.grammar_state)
    lengths = torch.tensor([len(demo.tokens) for demo in batch])
    return tokens, lengths, mask, state


def train_supervised(
    policy: SmallPolicy,
    suite: AgentSuite,
    config: SupervisedConfig,
    seeds: SeedSource,
    report: Callable[[dict[str, Any]], None],
    should_stop: Callable[[], bool],
    team: Team = SOLO,
) -> list[float]:
    """Cross-entropy on the expert's tokens under the grammar, AdamW.

    The loss of a step is the mean over its train tokens. It goes through ``policy.score``, so the
    policy learns the distribution that it will be sampled from.

    Args:
        policy: Changed in place.
        suite: Whose expert is imitated.
        config: Steps and rates.
        seeds: Generators of the base seed.
        report: Receives progress events.
        should_stop: Looked at before each step; rank 0's answer counts.
        team: The processes that share each step.

    Returns:
        Mean loss of each step, nats a token.

    Raises:
        Interrupted: If asked to stop; nothing is saved, a base takes a minute or two.
        FloatingPointError: If the loss is not finite.
    """
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    allowed = torch.from_numpy(suite.codec.grammar.allowed)
    losses: list[float] = []
    started = time.perf_counter()
    for step, batch in enumerate(demonstrations(suite, config, seeds, team)):
        if team.agree(should_stop()):
            raise Interrupted(f"stopped at step {step} of {config.steps} of the base policy")
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        optimizer.zero_grad(set_to_none=True)
        losses.append(
            _accumulate_gradient(
                policy, batch, allowed, suite.codec.pad_id, config.micro_batch, team
            )
        )
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(
                f"the supervised loss is {losses[-1]} at step {step}; lower the learning rate "
                f"(now {config.learning_rate}) or check the expert's tokens against the grammar"
            )
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
        optimizer.step()
        report(
            {
                "event": "progress",
                "phase": "base",
                "done": step + 1,
                "total": config.steps,
                "loss": losses[-1],
                "steps_per_second": (step + 1) / (time.perf_counter() - started),
            }
        )
    return losses


def _accumulate_gradient(
    policy: SmallPolicy,
    batch: Sequence[Demonstration],
    allowed: torch.Tensor,
    pad_id: int,
    micro_batch: int,
    team: Team,
) -> float:
    """Add the gradient of the team's mean loss a train token; that loss.

    Episodes differ tenfold in length, so they go through in slices of similar length: the gradient
    is the same and less padding is computed.
    """
    by_length = sorted(batch, key=lambda demo: len(demo.tokens))
    count, total = sum(sum(demo.train_mask) for demo in batch), 0.0
    denominator = max(sum(team.gather(count)), 1)
    for start in range(0, len(by_length), micro_batch):
        tokens, lengths, mask, state = collate(by_length[start : start + micro_batch], pad_id)
        log_probs = policy.score(tokens, lengths, mask, state, allowed).log_probs
        loss = -log_probs.sum() / denominator
        loss.backward()
        total += float(loss.detach())
    team.add_gradients(list(policy.parameters()))
    return float(sum(team.gather(total)))


@contextlib.contextmanager
def build_lock(
    path: Path,
    report: Callable[[dict[str, Any]], None],
    should_stop: Callable[[], bool],
    poll_seconds: float = 0.2,
) -> Iterator[None]:
    """Hold an exclusive lock that dies with its owner (``flock``), waiting for it if need be.

    Raises:
        Interrupted: If asked to stop while waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as handle:
        waiting = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if should_stop():
                    raise Interrupted("stopped while another process built the base") from None
                if not waiting:
                    handle.seek(0)
                    owner = handle.read().strip() or "unknown"
                    message = f"waiting for process {owner} to build the base policy"
                    report({"event": "waiting", "phase": "base", "message": message})
                    waiting = True
                time.sleep(poll_seconds)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        # The file stays: deleting it would let two processes lock two files of one name.
        yield


def _cached(
    folder: Path, fingerprint: str, report: Callable[[dict[str, Any]], None]
) -> dict[str, torch.Tensor] | None:
    """The weights on disk; None, with a warning if there is something unusable."""
    if not (folder / "base.json").exists():
        return None
    try:
        return _load(folder, fingerprint)
    except CheckpointError as error:
        message = f"cached base policy unusable: {error}. Building it again."
        report({"event": "warning", "message": message})
        return None


def _load(folder: Path, fingerprint: str) -> dict[str, torch.Tensor]:
    tensors, record = read_state(folder / "policy.safetensors", folder / "base.json")
    if record.get("fingerprint") != fingerprint:
        raise CheckpointError(f"{folder}/base.json is of base {record.get('fingerprint')}")
    return tensors


def ensure_base(
    suite: AgentSuite,
    config: MethodConfig,
    context: RunContext,
    make_policy: Callable[[torch.Generator], SmallPolicy],
    team: Team = SOLO,
) -> dict[str, torch.Tensor]:
    """The base policy's weights: from ``base_dir/<fingerprint>``, or built there first.

    Two cells that need the same base at once build it once. A base on disk that does not match its
    digest is built again, with a warning.

    Args:
        suite: Whose expert is imitated.
        config: The method.
        context: Folder of the bases, base seeds, progress, stop signal.
        make_policy: Makes the untrained policy from an initialisation generator.
        team: The processes that build it; rank 0 alone holds the lock and writes.

    Returns:
        The state dict.

    Raises:
        Interrupted: If asked to stop.
    """
    recipe = base_recipe(suite, config)
    fingerprint = canonical_digest(recipe)
    folder = context.base_dir / fingerprint
    lock = context.base_dir / f"{fingerprint}.lock"
    leading = team.rank == 0
    holding = build_lock(lock, context.report, context.should_stop)
    with holding if leading else contextlib.nullcontext():
        weights = _cached(folder, fingerprint, context.report) if leading else None
        if team.agree(weights is not None):
            return weights if weights is not None else _load(folder, fingerprint)
        seeds = context.base_seeds(config.base_seed)
        policy = make_policy(seeds.torch("initial-weights"))
        losses = train_supervised(
            policy, suite, config.supervised, seeds, context.report, context.should_stop, team
        )
        if leading:
            record = {"fingerprint": fingerprint, "recipe": recipe, "losses": losses}
            write_state(
                folder / "policy.safetensors", folder / "base.json", policy.state_dict(), record
            )
        team.agree(True)  # written: all go on with what a later cell reads
        return _load(folder, fingerprint)
