"""Starts a run of several processes and collects the answers of all ranks.

A child of the process that starts runs is torchrun; the ranks it starts connect to a socket here.
One that dies ends the others, by torchrun's hand; whatever they had said is kept.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memcalc.children.child import Channel
from memcalc.children.client import folder
from memcalc.children.exit_reason import ending, oom_kills, status_of
from memcalc.errors import MeasureError, UsageError
from memcalc.files.artifact import encode
from memcalc.measure.gpu.sampler import INTERVAL
from memcalc.measure.ranks.rank import DesertedError
from memcalc.measure.runs.runner import Listener, Request, Runner
from memcalc.records.measurement import GroupReading, Measurement, PhaseReading, RankReading

_PATIENCE = 5.0
"""Seconds that a rank has to take what it is told."""
_AT_ONCE = 256
"""Messages of one rank that are heard before the others' are."""


class Member:
    """A rank that is awaited, talks, or is gone."""

    def __init__(
        self, rank: int, world: int, device: str, said: Callable[[PhaseReading], None]
    ) -> None:
        self.rank = rank
        self.name = f"run (rank {rank} of {world})"
        self.pid = 0
        """0: it has not come in yet."""
        self.measurement: Measurement | None = None
        self.error: str | None = None
        """As it said itself."""
        self.usage: str | None = None
        """Why the plan cannot be run."""
        self.deserted = False
        """It failed because others were gone."""
        self.reached: list[PhaseReading] = []
        self.left: float | None = None
        """When it was gone or had answered, by the monotonic clock."""
        self._garbled = False
        self._channel: Channel | None = None

        def reached(reading: PhaseReading) -> None:
            self.reached.append(reading)
            said(reading)

        self._listener = Listener(device, reached)

    @property
    def place(self) -> str:
        """Where it was last heard of."""
        if not self.reached:
            return " before its first phase" if self.pid else " before it began"
        last = self.reached[-1]
        return f" after {last.phase.value} of step {last.step + 1}"

    def come(self, end: socket.socket, pid: int, request: dict[str, Any]) -> None:
        """Let it in, and tell it what to do."""
        self.pid, self._channel = pid, Channel(end)
        self._tell({"environment": None, "folder": folder(), "path": list(sys.path)})
        self._tell({"job": 1, **request})

    def hear(self) -> None:
        """Take what it has said, and look at its GPU."""
        for _ in range(_AT_ONCE):
            if self._channel is None:
                return
            self._channel.end.setblocking(False)
            try:
                message = self._channel.receive()
            except BlockingIOError:
                break
            except ValueError:
                self._garbled = True
                continue
            if message is None:
                self._leave()
                return
            self._take(message)
        self._listener.tick()

    def close(self) -> None:
        """Nobody listens to it any more."""
        self._leave()
        self._listener.close()

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.end.close()
            self._channel, self.left = None, time.monotonic()
            if self._garbled and self.measurement is None and self.error is None:
                self.error = f"The {self.name} sent an unreadable message."

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._listener.heard(message["event"])
            if message.get("waits"):
                self._tell({"go": 1})
        elif "answer" in message:
            try:
                self.measurement = self._listener.measurement(message["answer"], self.name)
            except MeasureError as error:
                self.error = str(error)
            self._leave()
        elif "error" in message:
            code = message.get("exit_code")
            self.deserted = code == DesertedError.exit_code
            self.error = str(message["error"])
            if code == UsageError.exit_code:
                self.usage = self.error
            self._leave()

    def _tell(self, message: dict[str, Any]) -> None:
        # One that is gone shows in what comes, or does not.
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.end.settimeout(_PATIENCE)
                self._channel.send(message)


_CREDENTIALS = struct.Struct("3i")
_PATIENCE = 1.0
"""Seconds in which a rank that comes in says which it is; it does so at once."""
_LONGEST = 64


def measure(
    runner: Runner, request: Request, world: int, said: Callable[[PhaseReading], None]
) -> GroupReading:
    """Measure one plan on several devices of this machine.

    Raises:
        MeasureError: there is no torchrun, or no process.
        UsageError: the plan cannot be run.
    """
    group = _Group(request, world, said)
    kills = oom_kills()
    failures: Mapping[int, int] = {}
    trouble = None
    try:
        failures = _failures(runner, request, group, world)
    except TimeoutError:
        trouble = (
            f"The run took longer than {request.timeout:g} seconds and was ended, "
            f"{where_they_are(group.members)}: give it more with --timeout."
        )
    except UsageError:
        raise
    except MeasureError as error:
        if not group.known:
            raise
        trouble = str(error)
    finally:
        group.close()
    wrong = next((one.usage for one in group.members if one.usage is not None), None)
    if wrong is not None:
        raise UsageError(wrong)
    trouble = trouble or first_failure(group.members, failures, kills)
    return GroupReading(ranks=readings(group.members, trouble), error=trouble)


def _failures(runner: Runner, request: Request, group: _Group, world: int) -> Mapping[int, int]:
    """Start the ranks and wait for them; the exit codes of those that failed."""
    starter = "memcalc.measure.ranks.launching", "process that starts the ranks"
    child = runner.child(request.plan, *starter)
    try:
        answer = child.ask(
            {"processes": world, "address": group.address},
            tick=group.look,
            interval=INTERVAL,
            timeout=request.timeout,
        )
        group.look()
    finally:
        child.end()
    return {int(rank): int(code) for rank, code in answer["failures"]}


class _Group:
    """The ranks of one run, and the socket where they come in."""

    def __init__(self, request: Request, world: int, said: Callable[[PhaseReading], None]) -> None:
        self.address = f"memcalc-ranks-{secrets.token_hex(16)}"
        self.members = [
            Member(rank, world, request.device, said if rank == 0 else lambda reading: None)
            for rank in range(world)
        ]
        self._request = encode(request)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(f"\0{self.address}")
        self._door.listen(world)
        self._door.setblocking(False)

    @property
    def known(self) -> bool:
        return any(one.pid for one in self.members)

    def look(self) -> None:
        self._admit()
        for one in self.members:
            one.hear()

    def close(self) -> None:
        """End whatever a rank has left behind, and let go of all."""
        self._door.close()
        for one in self.members:
            one.close()
            if one.pid:
                # torchrun makes each rank the leader of a group, and ends the rank alone.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.pid, signal.SIGKILL)

    def _admit(self) -> None:
        while True:
            try:
                end, _ = self._door.accept()
            except OSError:
                return
            raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _ = _CREDENTIALS.unpack(raw)
            rank = _rank(end) if user == os.getuid() else None
            if rank is None or rank >= len(self.members) or self.members[rank].pid:
                end.close()
                continue
            self.members[rank].come(end, pid, self._request)


def _rank(end: socket.socket) -> int | None:
    """Which rank this is, as it says when it comes in; it has said so before it is let in."""
    end.settimeout(_PATIENCE)
    with contextlib.suppress(OSError, ValueError):
        return int(end.recv(_LONGEST).removeprefix(b'{"rank": ').removesuffix(b"}\n"))
    return None


def first_failure(
    members: Sequence[Member], failures: Mapping[int, int], kills: int | None
) -> str | None:
    """What the rank says or is said of that failed by itself; ``None``: none did."""
    short = [
        one
        for one in members
        if one.measurement is not None and one.measurement.out_of_memory is not None
    ]
    if short:
        return None if len(short) == len(members) else f"The {short[0].name} ran out of memory."
    failed = [one for one in members if one.measurement is None or failures.get(one.rank)]
    if not failed:
        return None
    # A rank that says what went wrong beats one that just ended, and both one that lost another.
    spoke = [one for one in failed if one.error is not None and not one.deserted]
    died = [one for one in failed if one.error is None and failures.get(one.rank)]
    silent = [one for one in failed if one.error is None]
    blamed = min(spoke or died or silent or failed, key=lambda one: one.left or math.inf)
    if blamed.error is not None:
        return f"Rank {blamed.rank} of {len(members)}{blamed.place}: {blamed.error}"
    code = failures.get(blamed.rank)
    status = None if code is None else status_of(code)
    return ending(blamed.name, status, kills=kills, where=blamed.place)


def where_they_are(members: Sequence[Member]) -> str:
    """Where those that are not through were last heard of."""
    waiting = [one for one in members if one.measurement is None]
    return ", ".join(f"rank {one.rank}{one.place}" for one in waiting) or "all ranks through"


def readings(members: Sequence[Member], trouble: str | None) -> tuple[RankReading, ...]:
    """What each rank came to."""
    return tuple(
        RankReading(rank=one.rank, measurement=one.measurement)
        if one.measurement is not None
        else RankReading(
            rank=one.rank,
            error=one.error or trouble or f"The {one.name} ended without an answer.",
            reached=tuple(one.reached),
        )
        for one in members
    )
