"""``agent-eval`` through real processes: same bytes, nothing lost, every failure seen."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from harness import results

METRICS = Path("metrics") / "fake" / "thin-air-seed42.json"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def progressed(directory: Path) -> int | None:
    """The worker's pid once two updates are done."""
    for path in directory.glob("runs/fake/*/events.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines() if line[-1:] == "}"]
        if any(event.get("done", 0) >= 2 for event in events):
            return next(event["pid"] for event in reversed(events) if event["event"] == "started")
    return None


def test_results_land_exactly_where_asked(reference, the_only) -> None:
    """H7: the path asked for, no time stamp in any name; JSON on stdout, the rest on stderr."""
    directory, done = reference
    assert sorted(path.name for path in directory.iterdir()) == ["metrics", "runs"]
    assert [p.relative_to(directory) for p in (directory / "metrics").rglob("*.json")] == [METRICS]
    assert done.stdout == (directory / METRICS).read_text()
    assert the_only(directory, "runs/fake/*/mirror.json").is_file()  # to be mirrored later
    document = results.read_metrics(directory / METRICS)
    assert document["status"] == "ok"
    assert document["budget"] == {"episodes": 8, "updates": 3}
    assert "rl: 3/3" in done.stderr
    cell = the_only(directory, "runs/fake/*")
    assert cell.name == f"thin-air-seed42-{document['cell_id'][:12]}"
    assert len((cell / "history.jsonl").read_text().splitlines()) == 3
    assert (cell / "trajectories.jsonl").exists()


def test_the_run_record_says_where_the_numbers_came_from(reference, the_only) -> None:
    directory, _ = reference
    record = results.read_run_record(the_only(directory, "runs/fake/*/run.json"))
    assert record["status"] == "ok"
    assert record["attempt"] == 1
    assert record["threads"] == 1
    assert record["environment"]["OMP_NUM_THREADS"] == "1"
    assert record["environment"]["ATEN_CPU_CAPABILITY"] == "avx2"
    assert len(record["numerics_fingerprint"]) == 64
    assert record["peak_memory"]["bytes"] > 2**20
    assert "VmHWM" in record["peak_memory"]["scope"]
    assert record["packages"]["torch"]
    assert {"startup", "rl", "total"} <= set(record["durations"])
    assert record["extra"]["origins"]["method"].startswith("plugin ")


def test_the_same_command_gives_the_same_bytes_whatever_the_caller_is(reference, cli, fake) -> None:
    """Another directory, other threads, folders named like ours in the way."""
    directory, _ = reference
    for package in ("harness", "methods", "benchmarks", "torch"):
        (cli.cwd / package).mkdir()
        (cli.cwd / package / "__init__.py").write_text("raise RuntimeError('shadowed')")
    done = cli(
        *fake,
        *("--metrics-dir", "out/put", "--runs-dir", cli.cwd / "elsewhere"),
        OMP_NUM_THREADS="2",
        MKL_NUM_THREADS="2",
        ATEN_CPU_CAPABILITY="default",
        PYTHONHASHSEED="77",
    )
    written = cli.cwd / "out" / "put" / "fake" / "thin-air-seed42.json"
    assert written.read_bytes() == (directory / METRICS).read_bytes()
    assert "after RL" in done.stdout
    assert "before RL     0.500" in done.stdout
    assert "undefined (no calls were made)" in done.stdout
    assert "out/put/fake/thin-air-seed42.json" in done.stdout


def test_a_finished_cell_is_reused_and_force_keeps_its_record(reference, cli_in, fake, the_only):
    directory, _ = reference
    before = (directory / METRICS).read_bytes()
    (directory / METRICS).unlink()
    again = cli_in(directory)(*fake)
    assert "reused" in again.stderr
    assert "--force" in again.stderr
    assert "Warning" not in again.stderr
    run = the_only(directory, "runs/fake/*/run.json")
    record = results.read_run_record(run)
    record["extra"]["code_fingerprint"] = "0ddc0de" * 9
    results.write_run_record(run, record)
    warned = cli_in(directory)(*fake)
    assert "Warning: other code made it (code 0ddc0de0ddc0, commit" in warned.stderr
    assert "reused" in warned.stderr
    assert (directory / METRICS).read_bytes() == before
    assert results.read_run_record(the_only(directory, "runs/fake/*/run.json"))["attempt"] == 1
    forced = cli_in(directory)(*fake, "--force")
    assert "reused" not in forced.stderr
    assert (directory / METRICS).read_bytes() == before
    cell = the_only(directory, "runs/fake/*")
    assert results.read_run_record(cell / "run.json")["attempt"] == 2
    assert results.read_run_record(cell / "attempts" / "001" / "run.json")["status"] == "ok"


def test_ctrl_c_while_the_worker_is_starting_is_an_interruption_too(cli, fake, wait_for) -> None:
    process = cli.start(*fake)
    wait_for(lambda: list(cli.cwd.glob("runs/fake/*/worker.log")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "To continue" in said
    assert not (cli.cwd / METRICS).exists()


def test_a_closed_terminal_is_an_interruption_too(cli, fake, wait_for) -> None:
    process = cli.start(*fake, FAKE_HOLD="2")
    wait_for(lambda: progressed(cli.cwd))
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "To continue" in said


def test_a_second_ctrl_c_stops_a_worker_that_does_not_listen(cli, fake, wait_for) -> None:
    process = cli.start(*fake, FAKE_HOLD="2", FAKE_BEHAVIOUR="stubborn")
    worker = wait_for(lambda: progressed(cli.cwd))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    wait_for(lambda: "Ctrl-C again" in process.stderr.readline())
    assert alive(worker)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping at once" in said
    assert not alive(worker)


@pytest.mark.parametrize(
    ("behaviour", "kind", "message", "exit_code"),
    [
        ("raise", "RuntimeError", "the reward model is on fire", 1),
        ("kill", "killed", "SIGKILL", -9),
        ("memory", "oom", "MemoryError", 1),
        ("member", "TeamError", "process 1 failed with ValueError: what the member says", 1),
    ],
)
def test_no_failure_of_a_worker_is_lost(
    cli, fake, the_only, behaviour, kind, message, exit_code
) -> None:
    """H8: raising, killed, out of memory, in a member: each shows as failed, with its reason."""
    done = cli(*fake, expect=1, FAKE_BEHAVIOUR=behaviour)
    assert message in done.stderr
    document = results.read_metrics(cli.cwd / METRICS)
    assert document["status"] == "failed"
    assert document["error"]["type"] == kind
    assert message in document["error"]["message"]
    assert str(cli.cwd) not in (cli.cwd / METRICS).read_text()
    record = results.read_run_record(the_only(cli.cwd, "runs/fake/*/run.json"))
    assert record["status"] == "failed"
    assert record["extra"]["exit_code"] == exit_code
    if behaviour == "member":
        log = the_only(cli.cwd, "runs/fake/*/worker.log").read_text()
        assert 'raise ValueError("what the member says")' in log
    if behaviour == "raise":
        assert "in misbehave" in record["extra"]["error"]["traceback"]
        assert "in misbehave" in the_only(cli.cwd, "runs/fake/*/worker.log").read_text()


def test_io_failures_say_which_file_and_what_to_do(cli, fake, the_only) -> None:
    """A worker that cannot even record its end; then a system error that it can record."""
    cli(*fake)
    cell = the_only(cli.cwd, "runs/fake/*")
    (cell / "events.jsonl").unlink()
    (cell / "events.jsonl").mkdir()
    (cell / "run.json").unlink()
    done = cli(*fake, expect=1)
    assert f"Is a directory: '{cell}/events.jsonl'" in done.stderr
    assert "Move away what the message names" in done.stderr
    (cell / "events.jsonl").rmdir()
    (cli.cwd / METRICS).unlink()
    full = cli(*fake, expect=1, FAKE_BEHAVIOUR="full")
    assert "No space left on device: '/srv/full/disk'" in full.stderr
    assert "Free some space" in full.stderr
    assert "--runs-dir" in full.stderr


def test_paths_stay_out_of_the_metrics_file_and_in_the_record(cli, fake, the_only) -> None:
    done = cli(*fake, expect=1, FAKE_BEHAVIOUR="path")
    message = results.read_metrics(cli.cwd / METRICS)["error"]["message"]
    assert message == "cannot open '<cwd>/x' or <path>/place.bin"
    full = f"cannot open '{cli.cwd}/x' or /srv/secret/place.bin"
    record = results.read_run_record(the_only(cli.cwd, "runs/fake/*/run.json"))
    assert record["extra"]["error"]["message"] == full
    assert full in done.stderr


@pytest.mark.parametrize("extra", [[], ["--overwrite"], ["--force"]], ids=str)
def test_a_failure_never_replaces_a_success_of_the_same_cell(
    reference, cli, fake, the_only, extra
) -> None:
    target = cli.cwd / METRICS
    target.parent.mkdir(parents=True)
    good = (reference[0] / METRICS).read_bytes()
    target.write_bytes(good)
    done = cli(*fake, *extra, expect=1, FAKE_BEHAVIOUR="raise")
    assert target.read_bytes() == good
    failure = the_only(cli.cwd, "runs/fake/*/metrics.json")
    assert results.read_metrics(failure)["status"] == "failed"
    assert "is kept; the failure is in" in done.stderr
    assert f"recorded: {failure.relative_to(cli.cwd)}" in done.stderr


def test_a_nan_metric_becomes_null_with_a_reason(cli, fake) -> None:
    """H1: strict JSON, and the table says so."""
    done = cli(*fake, FAKE_BEHAVIOUR="nan")
    document = results.read_metrics(cli.cwd / METRICS)
    assert document["metrics"]["reward"]["value"] is None
    assert "NaN" in document["metrics"]["reward"]["reason"]
    assert document["samples"]["reward"][0] is None
    assert "undefined (value was NaN)" in done.stdout


def test_another_cells_result_is_not_replaced_unless_asked(reference, cli, fake, the_only) -> None:
    target = cli.cwd / METRICS
    target.parent.mkdir(parents=True)
    reference_bytes = (reference[0] / METRICS).read_bytes()
    target.write_bytes(reference_bytes)
    small = [*fake, "--episodes", "2", "--updates", "0"]
    refused = cli(*small, expect=2)
    old_id = json.loads(reference_bytes)["cell_id"]
    assert old_id[:12] in refused.stderr
    assert "budget.episodes (8 there, 2 here)" in refused.stderr
    assert "budget.updates (3 there, 0 here)" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert target.read_bytes() == reference_bytes
    replaced = cli(*small, "--overwrite")
    assert str(the_only(cli.cwd, "runs/fake/*/replaced/*.json")) in replaced.stderr
    assert results.read_metrics(target)["budget"] == {"episodes": 2, "updates": 0}
    assert the_only(cli.cwd, "runs/fake/*/replaced/*.json").read_bytes() == reference_bytes


def test_a_closed_tracking_port_costs_one_line(reference, cli, fake) -> None:
    """H2: results are complete and the exit code is 0."""
    tracked = [word for word in fake if word != "--no-track"]
    done = cli(*tracked, "--tracking-uri", "http://127.0.0.1:9")
    warnings = [line for line in done.stderr.splitlines() if "MLflow" in line]
    assert len(warnings) == 1
    assert "skipped" in warnings[0]
    assert (cli.cwd / METRICS).read_bytes() == (reference[0] / METRICS).read_bytes()


def test_output_into_a_closed_pipe_loses_no_result(cli, fake) -> None:
    process = cli.start(*fake)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    process.wait(timeout=60)
    assert results.read_metrics(cli.cwd / METRICS)["status"] == "ok"
    assert os.listdir(cli.cwd / "runs")
