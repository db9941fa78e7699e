"""Committed results belong to the methods and benchmarks as they are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.builtins import registries
from harness.results import read_metrics
from harness.spec import build_spec

ROOT = Path(__file__).parents[2] / "metrics"
FILES = sorted(ROOT.glob("*/*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_committed_file_is_the_cell_that_its_spec_names(path: Path) -> None:
    """A changed config, version or data fingerprint needs new results (`make reproduce`)."""
    document = read_metrics(path)
    known = registries()
    method = known.methods.load(document["method"]["name"])
    benchmark = known.benchmarks.load(document["benchmark"]["name"])
    spec = build_spec(method, benchmark, seed=document["seed"], **document["budget"])
    assert document["cell_id"] == spec.cell_id
    assert document["status"] == "ok"
    assert path.parent.name == method.name
    assert path.stem == f"{benchmark.name}-seed{document['seed']}"
    assert set(document["metrics"]) == set(benchmark.metric_specs)
