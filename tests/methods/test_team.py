"""A cell's processes: equal sums in a fixed order, and no member that is lost in silence."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from methods import team as team_module
from methods.base import Interrupted
from methods.team import Team, TeamError, run_team


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_reach_every_member_in_rank_order(size: int) -> None:
    def body(team: Team) -> tuple[list[int], list[int], str, list[str]]:
        ranks = team.gather(team.rank)
        items = team.interleave(team.gather(team.share_of(list(range(7)))))
        return ranks, items, team.agree(f"from {team.rank}"), team.gather(f"saw {ranks}")

    ranks, items, agreed, seen = run_team(size, body)
    assert ranks == list(range(size))
    assert items == list(range(7))
    assert agreed == "from 0"
    assert seen == [f"saw {ranks}"] * size


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_are_summed_and_a_missing_one_counts_as_zero(size: int) -> None:
    def body(team: Team) -> list[list[float]]:
        first, second = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
        first.grad = torch.full((2, 3), float(10**team.rank))
        if team.rank == 0:
            second.grad = torch.ones(2, 3)
        team.add_gradients([first, second])
        assert first.grad is not None
        assert second.grad is not None
        return team.gather([float(first.grad[1, 2]), float(second.grad[0, 0])])

    expected = float(sum(10**rank for rank in range(size)))
    assert run_team(size, body) == [[expected, 1.0]] * size


def test_large_tensors_do_not_block_the_link() -> None:
    def body(team: Team) -> float:
        return float(team.add_(torch.ones(2_000_000)).sum())

    assert run_team(2, body) == 4_000_000.0


def test_a_killed_member_is_reported_with_its_signal() -> None:
    def body(team: Team) -> None:
        team.gather(None)
        if team.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        team.gather(None)

    with pytest.raises(TeamError, match="process 1 was killed by signal 9"):
        run_team(2, body)


def test_a_member_that_raises_is_reported_with_its_reason(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def body(team: Team) -> None:
        if team.rank == 1:
            raise ValueError("the reason of rank 1")
        team.gather(None)

    with pytest.raises(TeamError, match="process 1 failed with ValueError: the reason of rank 1"):
        run_team(2, body)
    log = capfd.readouterr().err
    assert "Traceback" in log
    assert 'raise ValueError("the reason of rank 1")' in log


def test_members_that_are_asked_to_stop_leave_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def body(team: Team) -> None:
        if team.agree(team.rank == 0):
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        run_team(3, body)
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
@pytest.mark.parametrize("failing", [False, True])
def test_peaks_of_the_members_are_their_own(failing: bool) -> None:
    """M2: what the leader once touched and gave back does not count in a member."""
    released = len(bytearray(b"x") * (700 * 2**20))
    events: list[Mapping[str, Any]] = []

    def body(team: Team) -> None:
        if team.rank == 1:
            len(bytearray(b"x") * (150 * 2**20))
        team.gather(None)
        if failing:
            raise KeyError("rank 0")

    if failing:
        with pytest.raises(KeyError):
            run_team(3, body, events.append)
    else:
        run_team(3, body, events.append)
    (event,) = events
    assert event["event"] == "memory"
    large, small = event["bytes"]
    assert 0 < small < large < released
    assert 130 * 2**20 < large - small < 200 * 2**20


def test_an_error_of_rank_0_is_its_own_and_ends_the_others() -> None:
    reader, writer = os.pipe()

    def body(team: Team) -> None:
        if team.rank == 0:
            raise KeyError("mine")
        os.write(writer, str(os.getpid()).encode().ljust(16))
        team.gather(None)

    with pytest.raises(KeyError, match="mine"):
        run_team(2, body)
    child = int(os.read(reader, 16))
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize(
    "talking",
    [
        True,
        pytest.param(
            False, marks=pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux")
        ),
    ],
)
def test_members_end_when_rank_0_is_killed(talking: bool) -> None:
    reader, writer = os.pipe()

    def body(team: Team) -> None:
        if team.rank == 1:
            os.write(writer, str(os.getpid()).encode().ljust(16))
        while True:
            if talking:
                team.gather(None)
            else:
                time.sleep(60)

    leader = os.fork()
    if leader == 0:
        run_team(2, body)
        os._exit(0)
    member = int(os.read(reader, 16))
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{member}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    pytest.fail(f"member {member} outlived its leader by 20 s")


def test_a_team_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 process, got 0"):
        run_team(0, lambda team: None)


def test_several_threads_are_refused_since_a_forked_pool_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    with pytest.raises(ValueError, match="4 threads here; set OMP_NUM_THREADS=1"):
        run_team(2, lambda team: None)
    assert run_team(1, lambda team: team.size) == 1


def test_a_member_that_does_not_end_is_killed_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(team_module, "_GRACE_SECONDS", 0.1)

    def body(team: Team) -> None:
        if team.rank == 1:
            time.sleep(200)
        raise KeyError("rank 0")

    with pytest.raises(KeyError, match="rank 0"):
        run_team(2, body)
