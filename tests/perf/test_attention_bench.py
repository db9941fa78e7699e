"""Speed and memory of blockwise attention, forward and backward, as ratios.

Times: one thread (as a cell's worker runs), processor time (what other processes take does not
count, page faults do). The competitors run in turn in one process, round after round, and the ratio
is the median over rounds of the paired ratios, so that a machine that slows down slows both sides.

Memory: each kernel in a fresh process, peak resident size (VmHWM) minus that of a process that holds
only the inputs; output and gradients are counted as extra.

Peers: ``reference`` (the T x T matrix, as eager transformers code does) and torch's
``scaled_dot_product_attention`` under a dense bool mask, what a CPU user would pick today; it has no
sink logits, so it does less. Its mask is made beforehand; the reference's, which is made in every
call, is timed by itself and taken off (its share is printed). The flop limit is the band's six matrix
products (two forward, four backward, T * (W + S) visible pairs) at the speed of a large float32
product on the same threads.

Run one kernel by hand: ``python tests/perf/test_attention_bench.py blockwise 65536``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from methods.attention import record_paths, sink_attention
from methods.attention.layout import visible

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]  # a busy machine stretches the wall

HEADS, WIDTH, WINDOW, SINKS, THREADS = 8, 64, 128, 4, 1
Action = Callable[[], Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(threads)


def leaves(
    length: int, rows: int = 1, heads: int = HEADS, key_heads: int = HEADS, width: int = WIDTH
) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = [(rows, heads, length, width), *[(rows, key_heads, length, width)] * 2, (heads,)]
    return [torch.randn(*shape, generator=g).requires_grad_() for shape in shapes]


def step(kernel: str, x: list[Tensor], window: int | None = WINDOW, sinks: int = SINKS) -> Action:
    """One forward and backward pass of a kernel as a function without arguments."""
    query, key, value, logits = x
    weight = torch.ones_like(query)
    if kernel == "sdpa":
        mask = visible(query.shape[2], window, sinks)

    def run() -> None:
        for leaf in x:
            leaf.grad = None
        if kernel == "sdpa":
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, enable_gqa=query.shape[1] != key.shape[1]
            )
        else:
            out = sink_attention(
                query,
                key,
                value,
                window=window,
                num_sink_tokens=sinks,
                sink_logits=logits,
                backend=kernel,  # type: ignore[arg-type]
            )
        out.backward(weight)

    return run


def seconds(action: Action) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def paired(actions: dict[str, Action], rounds: int) -> list[dict[str, float]]:
    """Seconds of each action, round after round, after one round to warm up."""
    for action in actions.values():
        action()
    return [{name: seconds(action) for name, action in actions.items()} for _ in range(rounds)]


def ratio(rounds: list[dict[str, float]], above: str, below: str) -> float:
    return median(times[above] / times[below] for times in rounds)


def report(benchmark: Any, title: str, **figures: float) -> None:
    benchmark.extra_info.update(figures)
    cells = "   ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in figures.items())
    print(f"\n  {title}: {cells}")


def extra_bytes(kernel: str, length: int) -> int:
    """Peak resident bytes of a forward and backward pass beyond the inputs, in fresh processes."""

    def peak(what: str) -> int:
        command = [sys.executable, str(Path(__file__)), what, str(length)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(json.loads(done.stdout)["vm_hwm_bytes"])

    return peak(kernel) - peak("inputs")


def test_against_the_materialised_kernels(benchmark: Any) -> None:
    length = 4096
    x = leaves(length)
    product = torch.randn(2048, 2048)
    actions = {name: step(name, x) for name in ("blockwise", "reference", "sdpa")} | {
        "sgemm": lambda: product @ product,
        "mask": lambda: visible(length, WINDOW, SINKS),
    }
    with record_paths() as paths:
        actions["blockwise"]()
    assert str(paths[0]) == "blockwise/tiled"
    rounds = paired(actions, 5)
    flops = 6 * 2 * HEADS * WIDTH * length * (WINDOW + SINKS)
    for times in rounds:
        times["reference_and_mask"] = times["reference"]
        times["reference"] -= times["mask"]
        times["flop_limit"] = times["sgemm"] * flops / (2 * 2048**3)
    figures = {
        "reference_over_blockwise": ratio(rounds, "reference", "blockwise"),
        "sdpa_over_blockwise": ratio(rounds, "sdpa", "blockwise"),
        "blockwise_over_flop_limit": ratio(rounds, "blockwise", "flop_limit"),
        "mask_share_of_reference": ratio(rounds, "mask", "reference_and_mask"),
        "blockwise_ms": 1e3 * median(times["blockwise"] for times in rounds),
    }
    benchmark.pedantic(actions["blockwise"], rounds=5)
    report(benchmark, "T = 4096, time", **figures)
    assert figures["reference_over_blockwise"] >= 20
    assert figures["sdpa_over_blockwise"] >= 6
    assert figures["blockwise_over_flop_limit"] <= 5


def test_time_grows_with_the_length(benchmark: Any) -> None:
    actions = {str(n): step("blockwise", leaves(n)) for n in (4096, 8192)}
    rounds = paired(actions, 15)
    benchmark.pedantic(actions["8192"], rounds=3)
    growth = ratio(rounds, "8192", "4096")
    report(benchmark, "T 4096 -> 8192, time", growth=growth)
    assert growth <= 2.2


@pytest.mark.skipif(sys.platform != "linux", reason="reads VmHWM from /proc")
def test_memory(benchmark: Any) -> None:
    """At most 8 % of the reference's, linear in T, and 65536 positions run."""
    block = benchmark.pedantic(extra_bytes, args=("blockwise", 4096), rounds=1)
    double, far = (extra_bytes("blockwise", length) for length in (8192, 65536))
    written, sdpa = (extra_bytes(kernel, 4096) for kernel in ("reference", "sdpa"))
    figures = {
        "share_of_reference": block / written,
        "share_of_sdpa": block / sdpa,
        "growth_4096_to_8192": double / block,
        "growth_4096_to_65536": far / block,
        "blockwise_MB": block / 1e6,
        "reference_MB": written / 1e6,
        "T65536_MB": far / 1e6,
    }
    report(benchmark, "T = 4096, extra memory", **figures)
    assert figures["share_of_reference"] <= 0.08
    assert figures["growth_4096_to_8192"] <= 2.2
    assert figures["growth_4096_to_65536"] <= 16 * 1.1


@pytest.mark.parametrize("length", [150, 300, 450])
def test_in_a_small_policy(benchmark: Any, length: int) -> None:
    """The shape that agent training runs thousands of times; printed, not asserted."""
    x = leaves(length, rows=16, heads=4, key_heads=2, width=24)
    actions = {name: step(name, x, 48, 24) for name in ("blockwise", "reference", "sdpa")}
    rounds = paired(actions, 15)
    benchmark.pedantic(actions["blockwise"], rounds=5)
    report(
        benchmark,
        f"B = 16, Hq = 4, Hkv = 2, D = 24, W = 48, S = 24, T = {length}",
        reference_over_blockwise=ratio(rounds, "reference", "blockwise"),
        sdpa_over_blockwise=ratio(rounds, "sdpa", "blockwise"),
        blockwise_ms=1e3 * median(times["blockwise"] for times in rounds),
    )


def test_full_causal(benchmark: Any) -> None:
    """The looped path, T = 2048; printed, not asserted. SDPA here is its causal flash kernel."""
    x = leaves(2048)
    query, key, value, _ = x

    def causal() -> None:
        torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        ).sum().backward()

    actions = {name: step(name, x, None, 0) for name in ("blockwise", "reference")}
    rounds = paired(actions | {"sdpa": causal}, 5)
    benchmark.pedantic(actions["blockwise"], rounds=3)
    report(
        benchmark,
        "full causal, T = 2048",
        reference_over_blockwise=ratio(rounds, "reference", "blockwise"),
        causal_sdpa_over_blockwise=ratio(rounds, "sdpa", "blockwise"),
    )


def _child(kernel: str, length: int) -> dict[str, int]:
    """Run one kernel once (``inputs``: none) and read the peak resident size of this process."""
    torch.set_num_threads(THREADS)
    step("blockwise" if kernel == "inputs" else kernel, leaves(256))()
    x = leaves(length)
    if kernel == "inputs":
        assert all(torch.ones_like(leaf).sum() > 0 for leaf in x[:1])
    else:
        step(kernel, x)()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return {"vm_hwm_bytes": int(line.split()[1]) * 1024}
    raise RuntimeError("/proc/self/status has no VmHWM line")


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], int(sys.argv[2]))))
