"""Which code ran, what it costs, and what is refused."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from methods.attention import AttentionPath, record_paths, resolve_backend, sink_attention


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage made inside, while it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _peak(make_inputs, length: int, **arguments) -> int:
    inputs = make_inputs(rows=1, heads=2, key_heads=1, length=length, dtype=torch.float32)
    with LiveBytes() as meter:
        out = sink_attention(*inputs.leaves(False), sink_logits=inputs.sink_logits, **arguments)
        out.backward(inputs.weight)
    return meter.peak


def test_memory_grows_as_the_path_says(make_inputs):
    """A5: four times the length: blockwise stays linear, and the reference shows what quadratic is.

    The full causal path holds one tile of block x T scores.
    """
    window = {"window": 32, "num_sink_tokens": 4}
    growth = {}
    for name, short, arguments in (
        ("tiled", 2048, {**window, "backend": "blockwise"}),
        ("looped", 512, {"backend": "blockwise"}),
        ("materialised", 256, {**window, "backend": "reference"}),
    ):
        few, many = (_peak(make_inputs, length, **arguments) for length in (short, 4 * short))
        growth[name] = many / few
    assert growth["tiled"] < 4.4, growth
    assert growth["looped"] < 4.4, growth
    assert growth["materialised"] > 12, growth


def test_the_path_that_ran_is_recorded(make_inputs):
    """A5: in order, only inside the block, and as ``resolve_backend`` says."""
    inputs = make_inputs(length=50)
    with record_paths() as paths:
        sink_attention(*inputs.leaves(False), window=8)
        sink_attention(*inputs.leaves(False))
        sink_attention(*inputs.leaves(False), window=50, backend="blockwise")
        sink_attention(*inputs.leaves(False), window=8, backend="reference")
    sink_attention(*inputs.leaves(False), window=8)
    assert [str(path) for path in paths] == [
        "blockwise/tiled",
        "blockwise/looped",
        "blockwise/looped",
        "reference/materialised",
    ]
    assert paths[0] == resolve_backend("auto", device="cpu", length=50, window=8)
    assert paths[0] == AttentionPath("blockwise", "tiled", "linear")
    assert paths[3].memory == "quadratic"


def test_auto_on_cuda_means_flex_or_an_error(monkeypatch):
    from methods.attention import flex

    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda name: object())
    path = resolve_backend("auto", device="cuda", length=4096, window=128)
    assert str(path) == "flex/compiled"
    with pytest.raises(ValueError, match="float64"):
        resolve_backend("auto", device="cuda", dtype=torch.float64, length=4096, window=128)
    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install triton"):
        resolve_backend("flex", device="cuda", length=4096, window=128)


def test_flex_without_cuda_says_why(make_inputs):
    inputs = make_inputs()
    with pytest.raises(ValueError, match=r"CUDA only.*on cpu.*backend='blockwise'"):
        sink_attention(*inputs.leaves(False), backend="flex")


def _replace(**changes):
    def make(inputs):
        arguments = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        return arguments | {name: change(inputs) for name, change in changes.items()}

    return make


CASES = {
    "unknown backend": (
        _replace(backend=lambda i: "fast"),
        ValueError,
        "backend is 'fast'; allowed: 'auto', 'reference', 'blockwise', 'flex'",
    ),
    "not a tensor": (_replace(key=lambda i: [1]), TypeError, "key is a list"),
    "three dimensions": (
        _replace(query=lambda i: i.query[0]),
        ValueError,
        r"query has shape \(4, 17, 4\)",
    ),
    "integer query": (_replace(query=lambda i: i.query.long()), TypeError, "dtype torch.int64"),
    "mixed dtypes": (
        _replace(value=lambda i: i.value.float()),
        TypeError,
        "value has dtype torch.float32, query torch.float64",
    ),
    "mixed devices": (
        _replace(key=lambda i: i.key.to("meta")),
        ValueError,
        "key is on meta, query on cpu",
    ),
    "key and value": (
        _replace(value=lambda i: i.value[:, :1]),
        ValueError,
        "key has shape .* value",
    ),
    "lengths": (
        _replace(query=lambda i: i.query[:, :, :9]),
        ValueError,
        "B, T and D must be equal",
    ),
    "heads": (_replace(query=lambda i: i.query[:, :3]), ValueError, "3 heads, key 2"),
    "empty": (
        _replace(**{n: lambda i, n=n: getattr(i, n)[:0] for n in ("query", "key", "value")}),
        ValueError,
        "no size may be 0",
    ),
    "window 0": (_replace(window=lambda i: 0), ValueError, "window is 0; it counts the query"),
    "window 2.0": (_replace(window=lambda i: 2.0), TypeError, "window is 2.0"),
    "window True": (_replace(window=lambda i: True), TypeError, "window is True"),
    "sinks -1": (_replace(num_sink_tokens=lambda i: -1), ValueError, "num_sink_tokens is -1"),
    "sinks None": (_replace(num_sink_tokens=lambda i: None), TypeError, "num_sink_tokens is None"),
    "scale nan": (_replace(scale=lambda i: float("nan")), ValueError, "scale is nan"),
    "logits shape": (
        _replace(sink_logits=lambda i: i.sink_logits[:2]),
        ValueError,
        r"sink_logits has shape \(2,\).*\(4,\)",
    ),
    "logits type": (_replace(sink_logits=lambda i: [0.0] * 4), TypeError, "sink_logits is a list"),
    "logits dtype": (
        _replace(sink_logits=lambda i: i.sink_logits.long()),
        TypeError,
        "sink_logits has dtype torch.int64",
    ),
    "ids shape": (
        _replace(document_ids=lambda i: torch.zeros(2, 5, dtype=torch.int64)),
        ValueError,
        r"document_ids has shape \(2, 5\).*\(2, 17\)",
    ),
    "ids dtype": (
        _replace(document_ids=lambda i: torch.zeros(2, 17)),
        TypeError,
        "document_ids has dtype torch.float32",
    ),
    "ids type": (_replace(document_ids=lambda i: [[0]]), TypeError, "document_ids is a list"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_arguments_are_named(make_inputs, case):
    make, error, message = CASES[case]
    with pytest.raises(error, match=message):
        sink_attention(**make(make_inputs()))
