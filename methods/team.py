"""A fixed number of processes that run one computation side by side (SPMD, data parallel).

Rollouts, scoring and gradients of a cell are split over ``size`` processes that hold equal copies
of the policy. The split is part of the recipe and not of the machine: on one core or on many, the
same shares are computed by the same operations and added in the same order, so the results are the
same to the byte. (More threads inside an operation would change how it rounds.)

Members are forked from the process that calls :func:`run_team`, talk through socket pairs, and pass
JSON and raw tensor bytes: nothing is pickled and no network interface is needed. A member ends with
the process that forked it (Linux: at once; elsewhere when it next talks to it).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from methods.base import Interrupted

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Item = TypeVar("Item")

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 20
_GRACE_SECONDS = 10.0
_LAST_WORDS = 2000  # bytes; a pipe takes them without a reader
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class TeamError(RuntimeError):
    """A member of the team ended before its work was done; the message says how."""


class Team:
    """One member's view of the team.

    Every collective method must be called by all members in the same order.

    Args:
        rank: This member, from 0.
        size: Members.
        links: Rank 0: one socket to each other rank, in order. Others: the socket to rank 0.
    """

    def __init__(self, rank: int = 0, size: int = 1, links: Sequence[socket.socket] = ()) -> None:
        self.rank, self.size, self._links = rank, size, tuple(links)

    def share_of(self, items: Sequence[Item]) -> list[Item]:
        """This member's part of ``items``: every ``size``-th one, from ``rank``."""
        return list(items[self.rank :: self.size])

    def interleave(self, item_lists: Sequence[Sequence[Item]]) -> list[Item]:
        """The inverse of :meth:`share_of`: what all members hold, in the original order."""
        total = sum(map(len, item_lists))
        return [item_lists[place % self.size][place // self.size] for place in range(total)]

    def gather(self, value: Any) -> list[Any]:
        """Every member's JSON-ready value, by rank, at every member."""
        if self.size == 1:
            return [value]
        if self.rank:
            _send(self._links[0], json.dumps(value).encode())
            gathered: list[Any] = json.loads(bytes(_receive(self._links[0])))
            return gathered
        values = [value, *(json.loads(bytes(_receive(link))) for link in self._links)]
        payload = json.dumps(values).encode()
        for link in self._links:
            _send(link, payload)
        return values

    def agree(self, value: T) -> T:
        """Rank 0's value, at every member."""
        agreed: T = self.gather(value if self.rank == 0 else None)[0]
        return agreed

    def add_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a contiguous CPU tensor by the sum over members, added in rank order.

        Args:
            tensor: Any shape; the same shape and dtype at every member.
        """
        import torch

        if self.size == 1:
            return tensor
        raw = _bytes_of(tensor)
        if self.rank:
            _send(self._links[0], raw)
            _receive(self._links[0], raw)
            return tensor
        for link in self._links:
            other = torch.empty_like(tensor)
            _receive(link, _bytes_of(other))
            tensor += other
        for link in self._links:
            _send(link, raw)
        return tensor

    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace every parameter's gradient by its sum over members (None counts as 0)."""
        import torch

        if self.size == 1:
            return
        flat = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten()
                for p in parameters
            ]
        )
        self.add_(flat)
        parts = torch.split_with_sizes(flat, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)


SOLO = Team()


def run_team(
    size: int,
    body: Callable[[Team], T],
    report: Callable[[Mapping[str, Any]], None] = lambda event: None,
) -> T:
    """Run ``body`` in ``size`` processes, this one being rank 0; rank 0's result.

    Members are forked, and a parallel backend's threads do not survive a fork: torch must work with
    one thread (``OMP_NUM_THREADS=1`` before it is loaded, as the harness's worker has it).

    Args:
        size: Members, at least 1; 1 runs ``body`` here alone.
        body: The computation; all members run it with equal inputs.
        report: Receives ``{"event": "memory", "bytes": [...]}`` once the members have ended, however
            they did: the peak resident set of each other than rank 0. Not called where the system
            does not say.

    Raises:
        ValueError: If ``size`` < 1, or torch works with several threads here.
        TeamError: If another member failed; the message says which, and its error.
        BaseException: What ``body`` raises here.
    """
    if size < 1:
        raise ValueError(f"a team has at least 1 process, got {size}")
    if size == 1:
        return body(Team())
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        raise ValueError(
            f"a team of {size} is forked, which a thread pool does not survive, and torch works with "
            f"{torch.get_num_threads()} threads here; set OMP_NUM_THREADS=1 before torch is loaded"
        )
    pairs = [socket.socketpair() for _ in range(1, size)]
    members: list[_Member] = []
    sys.stdout.flush()
    sys.stderr.flush()
    leader = os.getpid()
    for rank in range(1, size):
        listening, speaking = os.pipe()
        child = os.fork()
        if child == 0:
            _end_with(leader)
            _run_member(rank, size, pairs, body, speaking)
        os.close(speaking)
        members.append(_Member(rank, child, listening))
    for _, theirs in pairs:
        theirs.close()
    links = [ours for ours, _ in pairs]
    lost: ConnectionError | None = None
    try:
        return body(Team(0, size, links))
    except ConnectionError as error:
        lost = error
        raise
    finally:
        _close(links)
        deadline = time.monotonic() + _GRACE_SECONDS
        ends = [member.wait(deadline) for member in members]
        if sys.platform == "linux":
            report({"event": "memory", "bytes": [member.peak_bytes for member in members]})
        if lost is not None:
            raise TeamError(_obituary(ends)) from lost


class _Member:
    """A forked member as rank 0 sees it.

    Args:
        rank: From 1.
        child: Its process.
        listening: Pipe that brings its last words.
    """

    def __init__(self, rank: int, child: int, listening: int) -> None:
        self.rank, self._child, self._listening = rank, child, listening
        self.peak_bytes = 0

    def wait(self, deadline: float) -> str:
        """Wait for its end and kill it at the deadline; how it failed, or an empty string."""
        while not (ended := os.wait4(self._child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:  # a long step that nobody waits for any more
                os.kill(self._child, signal.SIGKILL)
                ended = os.wait4(self._child, 0)
                break
            time.sleep(0.002)
        _, status, usage = ended
        # A process that was forked and never executed a program: ru_maxrss is its own VmHWM, which
        # starts at what it shared with its parent then, and not at what the parent's peak had been.
        self.peak_bytes = usage.ru_maxrss * 1024
        os.set_blocking(self._listening, False)  # a child of the member might hold the other end
        try:
            words = os.read(self._listening, _LAST_WORDS).decode("utf-8", "replace")
        except BlockingIOError:
            words = ""
        os.close(self._listening)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return f"process {self.rank} was killed by signal {-code} ({signal.strsignal(-code)})"
        if code:
            return f"process {self.rank} failed with {words or f'exit code {code}'}"
        return ""


def _end_with(leader: int) -> None:
    """Have the kernel kill this process when its parent dies, also in the middle of a long step."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != leader:  # it died before the line above
            os._exit(1)


def _run_member(
    rank: int,
    size: int,
    pairs: Sequence[tuple[socket.socket, socket.socket]],
    body: Callable[[Team], Any],
    speaking: int,
) -> None:
    """What a forked member does; never returns to the caller's stack."""
    status = 1
    try:
        # Rank 0 alone reacts to a wish to stop; it tells the others through ``agree``.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mine = pairs[rank - 1][1]
        for number, (ours, theirs) in enumerate(pairs, start=1):
            ours.close()
            if number != rank:
                theirs.close()
        body(Team(rank, size, [mine]))
        status = 0
    except (ConnectionError, Interrupted):
        status = 0  # rank 0 has failed, or was asked to stop, and says so itself
    except BaseException as error:  # noqa: BLE001 - the process ends here; the log keeps the reason
        traceback.print_exc()
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        os.write(speaking, words.encode("utf-8", "backslashreplace")[:_LAST_WORDS])
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _obituary(ends: Sequence[str]) -> str:
    """What became of the team, in one message."""
    what = "; ".join(filter(None, ends)) or "the link to it broke"
    return f"a process of this cell was lost: {what}. Run the same command again to continue"


def _close(links: Sequence[socket.socket]) -> None:
    for link in links:
        link.close()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.detach().numpy()
    return memoryview(array).cast("B")


def _send(link: socket.socket, payload: bytes | memoryview) -> None:
    link.sendall(_HEADER.pack(len(payload)))
    link.sendall(payload)


def _receive(link: socket.socket, into: memoryview | None = None) -> bytearray | memoryview:
    header = bytearray(_HEADER.size)
    _fill(link, memoryview(header))
    (length,) = _HEADER.unpack(header)
    if into is None:
        buffer = bytearray(length)
        _fill(link, memoryview(buffer))
        return buffer
    if length != len(into):
        raise TeamError(f"members disagree: {length} bytes came where {len(into)} were expected")
    _fill(link, into)
    return into


def _fill(link: socket.socket, view: memoryview) -> None:
    while view:
        got = link.recv_into(view, min(len(view), _CHUNK))
        if got == 0:
            raise ConnectionResetError("the other end of the team's link was closed")
        view = view[got:]
