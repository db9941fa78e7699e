"""The README's figures are those of the committed metrics files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.results import read_metrics

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| `(?P<method>[\w-]+)` \| (?P<seed>\d+) \| (?P<base>[\d.]+) ± (?P<base_error>[\d.]+) "
    r"\| \*\*(?P<after>[\d.]+)\*\* ± (?P<after_error>[\d.]+) \| (?P<tiers>[\d./ ]+) "
    r"\| (?P<cost>[\d.]+) \| (?P<cache>\d+) KiB \|",
    re.MULTILINE,
)
ROWS = [match.groupdict() for match in ROW.finditer((ROOT / "README.md").read_text("utf-8"))]


def test_every_committed_result_has_a_row() -> None:
    files = {
        (path.parent.name, path.stem.rpartition("seed")[2])
        for path in (ROOT / "metrics").glob("*/scalemcp-mini-seed*.json")
    }
    assert len(files) >= 9
    assert {(row["method"], row["seed"]) for row in ROWS} == files


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['method']}-{row['seed']}")
def test_row_equals_its_file(row: dict[str, str]) -> None:
    path = ROOT / "metrics" / row["method"] / f"scalemcp-mini-seed{row['seed']}.json"
    metrics: dict[str, dict[str, Any]] = read_metrics(path)["metrics"]

    def shown(name: str, key: str = "value", digits: int = 3) -> str:
        return f"{metrics[name][key]:.{digits}f}"

    assert (row["base"], row["base_error"]) == (
        shown("base_joint_success"),
        shown("base_joint_success", "stderr"),
    )
    assert (row["after"], row["after_error"]) == (
        shown("joint_success"),
        shown("joint_success", "stderr"),
    )
    tiers = [shown(f"joint_success_tier_{tier}", digits=2) for tier in range(1, 6)]
    assert row["tiers"].split(" / ") == tiers
    assert row["cost"] == shown("average_cost", digits=1)
    assert row["cache"] == f"{metrics['kv_cache_peak_bytes']['value'] / 1024:.0f}"
