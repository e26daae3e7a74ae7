"""Watches one run's GPU memory through NVML from outside, at a steady interval and when asked.

The figure of the process is NVML's own where NVML lists it by a number we know; where it lists
numbers of the host (containers), the one that appeared with the context; else, the device's
growth since before the context, less what others grew.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from memcalc.measure.gpu import surroundings
from memcalc.measure.gpu.nvml import Card, Memory, Nvml, NvmlError, User
from memcalc.measure.gpu.visible import named, visible
from memcalc.records.measurement import GpuReading, Moment, OtherProcess
from memcalc.units import format_bytes

INTERVAL = 0.02


class _Level(msgspec.Struct, frozen=True, kw_only=True):
    memory: Memory
    users: tuple[User, ...] | None
    """``None``: the driver does not list processes."""


class _Record(msgspec.Struct):
    """What has been seen so far."""

    moments: list[Moment] = msgspec.field(default_factory=list)
    peak_device: int | None = None
    peak_process: int | None = None
    samples: int = 0
    others: dict[int, User] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)


class Sampler:
    """Follows one run."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.interval = interval
        self.failure: str | None = None
        """Why there are no figures, or none from some point on."""
        self._nvml: Nvml | None = None
        self._driver = ""
        self._cuda_total: int | None = None
        self._cards: Sequence[Card] = ()
        self._before: dict[str, _Level] = {}
        self._card: Card | None = None
        self._source = ""
        self._alias: int | None = None
        self._record = _Record()
        self._next = 0.0
        try:
            self._nvml = Nvml()
            self._driver = self._nvml.driver
            self._cards = self._nvml.cards()
        except NvmlError as error:
            self.failure = str(error)

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def tick(self) -> None:
        """Take a sample if one is due."""
        if self._card is None or self.failure is not None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.interval
        try:
            self._take(_level(self._card))
        except NvmlError as error:
            self.failure = str(error)

    def moment(self, name: str, facts: dict[str, Any], pid: int) -> None:
        """The run waits at a quiet point.

        Args:
            name: which.
            facts: what the run says of itself: ``uuid``, ``reserved``, ``cuda_used``.
            pid: of the run.
        """
        device = process = None
        self._cuda_total = facts.get("cuda_total", self._cuda_total)
        if self.failure is None:
            try:
                device, process = self._levels(name, facts, pid)
            except NvmlError as error:
                self.failure = str(error)
        self._record.moments.append(
            Moment(
                name=name,
                device=device,
                process=process,
                cuda_used=facts.get("cuda_used"),
                reserved=facts.get("reserved"),
            )
        )

    def _levels(self, name: str, facts: dict[str, Any], pid: int) -> tuple[int | None, int | None]:
        if name == "before":
            for card in self._cards:
                # Only the card that is used later has to answer.
                with contextlib.suppress(NvmlError):
                    self._before[card.uuid] = _level(card)
            return None, 0
        if self._card is None:
            self._choose(facts.get("uuid"), pid)
        if self._card is None:
            return None, None
        return self._take(_level(self._card))

    def _choose(self, uuid: str | None, pid: int) -> None:
        """Find the card of the run, and how its process can be told from others."""
        card = named(self._cards, uuid) if uuid is not None else None
        if card is None or card.divided:
            seen = visible(self._cards, os.environ)
            card = seen[0] if seen else None
        if card is None:
            raise NvmlError("missing", f"NVML knows no card with the UUID {uuid}.")
        if card.divided:
            raise NvmlError(
                "divided", "The card is cut into MIG slices, and NVML does not say which is ours."
            )
        self._card = card
        if surroundings.is_wsl():
            self._record.warnings.append(
                "WSL moves GPU memory to main memory: a run that succeeds need not have fitted"
            )
        now, before = _level(card), self._before.get(card.uuid)
        earlier = {user.pid for user in (before.users if before else None) or ()}
        users = {user.pid: user for user in now.users or ()}
        new = [user for user in users.values() if user.pid not in earlier]
        mine = users.get(pid) or (new[0] if len(new) == 1 else None)
        if mine is not None and mine.bytes is not None:
            self._alias, self._source = mine.pid, "process" if mine.pid == pid else "appeared"
        elif mine is None and new:
            self._source = "unknown"
            self._record.warnings.append(
                f"{len(new)} processes appeared on the GPU at once, and NVML does not say which "
                "is ours: its memory is not known"
            )
        else:
            self._alias, self._source = (mine.pid if mine else None), "difference"
            self._record.warnings.append(_why_difference(now, mine))
        self._moments_before(before)
        self._warn_of_others([user for user in users.values() if user.pid in earlier])

    def _moments_before(self, before: _Level | None) -> None:
        if before is not None and self._record.moments:
            self._record.moments[0] = Moment(name="before", device=before.memory.used, process=0)

    def _warn_of_others(self, others: list[User]) -> None:
        for user in others:
            size = format_bytes(user.bytes) if user.bytes is not None else "an unknown amount"
            self._record.warnings.append(
                f"the GPU is shared: {user.name} (process {user.pid}) holds {size} of it"
            )

    def _take(self, level: _Level) -> tuple[int, int | None]:
        record = self._record
        record.samples += 1
        for user in level.users or ():
            if user.pid != self._alias:
                if user.pid not in record.others and record.samples > 1:
                    self._warn_of_others([user])
                record.others[user.pid] = user
        device, process = level.memory.used, self._process(level)
        record.peak_device = max(record.peak_device or 0, device)
        if process is not None:
            record.peak_process = max(record.peak_process or 0, process)
        return device, process

    def _process(self, level: _Level) -> int | None:
        if self._source == "unknown":
            return None
        if self._source != "difference":
            return next((u.bytes for u in level.users or () if u.pid == self._alias), None)
        assert self._card is not None
        before = self._before.get(self._card.uuid)
        if before is None or before.memory.version != level.memory.version:
            return None
        grown = _others(level, self._alias) - _others(before, self._alias)
        return max(0, level.memory.used - before.memory.used - grown)

    def reading(self) -> GpuReading | None:
        """All that was seen; ``None``: nothing, and ``failure`` says why."""
        card, record = self._card, self._record
        if card is None:
            return None
        before = self._before.get(card.uuid)
        memory = before.memory if before is not None else None
        warnings = (*record.warnings, *((self.failure,) if self.failure else ()))
        return GpuReading(
            uuid=card.uuid,
            name=card.name,
            driver=self._driver,
            total=memory.total if memory else None,
            cuda_total=self._cuda_total,
            memory_info=memory.version if memory else "unknown",
            driver_reserved=memory.driver_reserved if memory else None,
            source=self._source,
            moments=tuple(record.moments),
            peak_device=record.peak_device,
            peak_process=record.peak_process,
            samples=record.samples,
            interval=self.interval,
            others=tuple(
                OtherProcess(pid=user.pid, name=user.name, bytes=user.bytes)
                for user in record.others.values()
            ),
            warnings=warnings,
        )


def _level(card: Card) -> _Level:
    memory = card.memory()
    try:
        users: tuple[User, ...] | None = tuple(card.users())
    except NvmlError as error:
        if error.kind == "lost":
            raise
        users = None
    return _Level(memory=memory, users=users)


def _others(level: _Level, alias: int | None) -> int:
    return sum(user.bytes or 0 for user in level.users or () if user.pid != alias)


def _why_difference(level: _Level, mine: User | None) -> str:
    if level.users is None:
        reason = "the driver lists no processes"
    elif mine is not None:
        reason = "the driver gives no memory of single processes (WSL, MIG or a virtual GPU)"
    else:
        reason = "the driver does not list this process (a container without --pid=host?)"
    return f"{reason}: the growth of the whole device is used instead"
