"""One rank as its parent sees it: its messages, and NVML's readings of its GPU."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from memcalc.children.channel import Channel
from memcalc.errors import UsageError
from memcalc.files.artifact import decode
from memcalc.measure.gpu.sampler import Sampler
from memcalc.measure.ranks.rank import DesertedError
from memcalc.measure.runs.runner import with_gpu
from memcalc.records.measurement import Measurement, PhaseReading

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
        self._said = said
        self._garbled = False
        self._channel: Channel | None = None
        # It reads what was on the GPUs before any rank came to them.
        self._sampler = Sampler() if device == "cuda" else None

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
        folder = None
        with contextlib.suppress(FileNotFoundError):
            folder = os.getcwd()
        self._tell({"environment": None, "folder": folder, "path": list(sys.path)})
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
        if self._sampler is not None:
            self._sampler.tick()

    def close(self) -> None:
        """Nobody listens to it any more."""
        self._leave()
        if self._sampler is not None:
            self._sampler.close()

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.end.close()
            self._channel, self.left = None, time.monotonic()
            if self._garbled and self.measurement is None and self.error is None:
                self.error = f"The {self.name} sent an unreadable message."

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._event(message["event"])
            if message.get("waits"):
                self._tell({"go": 1})
        elif "answer" in message:
            self._answered(message["answer"])
            self._leave()
        elif "error" in message:
            code = message.get("exit_code")
            self.deserted = code == DesertedError.exit_code
            self.error = str(message["error"])
            if code == UsageError.exit_code:
                self.usage = self.error
            self._leave()

    def _event(self, event: dict[str, Any]) -> None:
        if "phase" in event:
            self.reached.append(decode(PhaseReading, event["phase"]))
            self._said(self.reached[-1])
        elif self._sampler is not None:
            self._sampler.moment(event["moment"], event["facts"], event["pid"])

    def _answered(self, answer: dict[str, Any]) -> None:
        try:
            measured = decode(Measurement, answer["measurement"])
        except (ValueError, KeyError, TypeError):
            self.error = f"The {self.name} sent an unreadable measurement."
            return
        self.measurement = measured if self._sampler is None else with_gpu(measured, self._sampler)

    def _tell(self, message: dict[str, Any]) -> None:
        # One that is gone shows in what comes, or does not.
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.end.settimeout(_PATIENCE)
                self._channel.send(message)
