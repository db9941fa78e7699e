"""What only a process with torch in it can say: ``python -m harness.doctor_probe``.

It is started with a worker's pinned environment and prints one JSON object, so that ``doctor``
reports what a cell would meet, and a torch that crashes on import is a finding and not a crash.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from harness.launch import PINNED_ENVIRONMENT
from harness.numerics import numerics_fingerprint


def _why(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _try_backend(attention: Any, backend: str) -> dict[str, Any]:
    """Whether a backend computes what the reference does; flex is resolved, not compiled."""
    import torch

    device = "cuda" if backend == "flex" and torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 40, 16, generator=generator) for _ in range(3))
    kind: dict[str, Any] = {"window": 8, "num_sink_tokens": 2}
    logits = torch.zeros(2)
    try:
        path = attention.resolve_backend(backend, device=device, length=40, **kind)
        if device == "cuda":
            return {"works": True, "detail": f"{path} on {torch.cuda.get_device_name()}"}
        out, want = (
            attention.sink_attention(query, key, value, sink_logits=logits, backend=name, **kind)
            for name in (backend, "reference")
        )
        gap = float((out - want).abs().max())
    except Exception as error:  # noqa: BLE001 - whatever stops a backend is what we report
        return {"works": False, "detail": _why(error)}
    return {"works": gap < 1e-5, "detail": f"{path}, differs from reference by {gap:.1e}"}


def _attention() -> dict[str, Any]:
    # By name: the harness knows nothing of attention and must not import it.
    try:
        attention = importlib.import_module("methods.attention.api")
        return {
            name: _try_backend(attention, name) for name in attention.BACKENDS if name != "auto"
        }
    except Exception as error:  # noqa: BLE001 - as above
        return {"all": {"works": False, "detail": _why(error)}}


def probe() -> dict[str, Any]:
    """Torch's version and devices, whether the pins hold, the fingerprint, and the backends."""
    import torch

    return {
        "torch": torch.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "unpinned": [
            name for name, value in PINNED_ENVIRONMENT.items() if os.environ.get(name) != value
        ],
        "fingerprint": numerics_fingerprint(),
        "attention": _attention(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe()) + "\n")
