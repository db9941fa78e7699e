"""What metrics mean to each other, and what is compared with what."""

import math

import pytest

from harness.reporting.data import CellData
from harness.reporting.lengths import at_lengths
from harness.reporting.measures import mean_of, over_seeds, paired, views


def cell(made, **extra):
    key = (made["method"]["name"], made["benchmark"]["name"], made["seed"])
    return CellData(key, made, **extra)


def test_headline_is_the_metric_with_floors_tiers_and_a_state_before(load, make):
    (view,) = views(load(*make.three_methods()))
    assert view.headline == "success"
    assert view.cost == "average_cost"
    assert [(r.player, r.kind) for r in view.references("success")] == [
        ("do nothing", "floor"),
        ("expert", "ceiling"),
    ]
    assert view.tiers("success") == [("1", "success_tier_1"), ("2", "success_tier_2")]


def test_headline_of_the_committed_results():
    from harness.reporting.data import load_report_data

    from_root = load_report_data(__import__("pathlib").Path(__file__).parents[2] / "metrics", None)
    (view,) = views(from_root)
    assert (view.headline, view.cost) == ("joint_success", "average_cost")
    assert [tier for tier, _ in view.tiers("joint_success")] == ["1", "2", "3", "4", "5"]


def test_a_neutral_metric_is_nobodys_headline(load, make):
    made = make.document("m", "b", 1, {"clock": make.entry(3.0, direction="neutral")})
    (view,) = views(load(made))
    assert view.headline is None


def test_a_sweep_is_headed_by_the_longest_length_that_most_cells_reach(load, make):
    data = load(
        make.sweep("a", {256: 1e6, 512: 2e6, 1024: None}), make.sweep("b", {256: 1e6, 512: 3e6})
    )
    (view,) = views(data)
    assert view.is_sweep
    assert view.headline == "peak_bytes_cuda_at_512"


def test_cells_of_other_budgets_versions_or_data_are_kept_apart(load, make):
    alike = make.three_methods()
    other_budget = make.success("quick", 42, [0, 1, 0, 1], budget={"episodes": 4, "updates": 2})
    other_data = make.success("stale", 42, [0, 1, 0, 1], fingerprint="cd" * 32)
    found = views(load(*alike, other_budget, other_data))
    assert [view.methods for view in found] == [
        ["eager-attention", "plain", "windowed"],
        ["stale"],
        ["quick"],
    ] or [view.methods for view in found] == [
        ["eager-attention", "plain", "windowed"],
        ["quick"],
        ["stale"],
    ]
    assert len({view.slug for view in found}) == 3
    assert any("updates 2" in view.label for view in found)


def test_mean_and_interval_are_over_seeds(load, make):
    (view,) = views(load(*make.three_methods()))
    found = view.measured("windowed", "success")
    assert found.seeds == 3
    assert found.tasks == (8, 8)
    rates = [6 / 8, 7 / 8, 6 / 8]
    assert found.mean == pytest.approx(sum(rates) / 3)
    spread = (2 / 3) * (1 / 8) ** 2 / 2  # variance of the three, over n - 1
    half = 4.302652729696142 * math.sqrt(spread / 3)  # t of 2 degrees of freedom
    assert found.interval.high - found.mean == pytest.approx(half)
    assert view.measured("plain", "success").interval is None


def test_differences_are_paired_by_task_where_samples_make_up_the_value(load, make):
    (view,) = views(load(*make.three_methods()))
    found = view.difference("windowed", "success")
    assert (found.by, found.interval.n, found.seeds) == ("task", 24, 3)
    expected = (6 + 7 + 6) / 24 - (4 + 5 + 4) / 24
    assert found.interval.mean == pytest.approx(expected)
    assert found.interval.low < expected < found.interval.high
    assert found.same_sign
    assert view.difference("eager-attention", "success") is None
    gain = view.gain("plain", "success")
    assert gain.interval.mean == pytest.approx(2 / 8 - 2 / 8)
    assert not gain.same_sign


def test_samples_that_are_not_the_values_mean_are_not_paired(make):
    def with_peak(method, seed, value):
        entry = make.entry(value, unit="bytes", direction="minimize")
        return cell(
            make.document(method, "b", seed, {"peak": entry}, samples={"peak": [1.0, value]})
        )

    ours, theirs = (
        [with_peak("a", s, 10.0 + s) for s in (1, 2)],
        [with_peak("b", s, 20.0) for s in (1, 2)],
    )
    found = paired(ours, "peak", theirs, "peak")
    assert (found.by, found.interval.n) == ("seed", 2)
    assert found.interval.mean == pytest.approx(-8.5)


def test_other_settings_and_other_tasks_are_not_paired(make):
    a = cell(make.success("a", 1, [1, 0, 1, 0]))
    b = cell(make.success("b", 1, [1, 0, 1, 1], budget={"episodes": 4}))
    assert paired([a], "success", [b], "success") is None
    shifted = make.success("b", 1, [1, 0, 1, 1])
    shifted["samples"]["task_index"] = [7.0, 8.0, 9.0, 10.0]
    assert paired([a], "success", [cell(shifted)], "success").by == "seed"


def test_the_largest_floats_overflow_nothing():
    huge = 1.7e308
    assert mean_of([huge, huge]) == pytest.approx(huge)
    assert over_seeds([huge, -huge]).interval is None


def test_lengths_come_from_metrics_then_from_the_run_record(make):
    made = make.sweep("a", {512: 2e6, 1024: None}, "cpu")
    record = {
        "durations": {"seconds_cpu_at_512": 1.5, "total": 9.0},
        "extra": {"peak_bytes_at_256": 5},
    }
    found = cell(made, record=record)
    points = at_lengths(found, "peak_bytes")
    assert [(p.tokens, p.value, p.how, p.out_of_memory) for p in points] == [
        (256, 5.0, None, False),
        (512, 2e6, "cpu", False),
        (1024, None, "cpu", True),
    ]
    assert [(p.tokens, p.value) for p in at_lengths(found, "seconds")] == [(512, 1.5)]
