"""Watches one run's GPU memory through NVML from outside, at a steady interval and on request.

The memory of the process is NVML's own figure if NVML lists its process ID. In a container NVML
lists IDs of the host: then it is the process that appeared with the context. Otherwise it is the
device's growth since before the context, minus the growth of other processes.
"""

import contextlib
import os
import platform
import time
from collections.abc import Container, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.measure.gpu.nvml import Card, Memory, Nvml, NvmlError
from memcalc.records.measurement import GpuProcess, GpuReading, Moment
from memcalc.units import format_bytes

INTERVAL = 0.02
"""Seconds between samples."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """NVML's reading of a card at one moment."""

    memory: Memory
    users: tuple[GpuProcess, ...] | None
    """``None``: the driver does not list processes."""


def read_level(card: Card) -> Level:
    """Read a card's memory and processes through NVML.

    Raises:
        NvmlError: the card does not answer.
    """
    memory = card.read_memory()
    try:
        users: tuple[GpuProcess, ...] | None = tuple(card.list_processes())
    except NvmlError as error:
        if error.kind == "lost":
            raise
        users = None
    return Level(memory=memory, users=users)


class CardWatch(msgspec.Struct, kw_only=True):
    """The samples of one card so far, and their peaks."""

    card: Card
    before: Level | None
    """The reading before the run started."""
    source: str = "difference"
    """As in ``GpuReading``."""
    moments: list[Moment] = msgspec.field(default_factory=list)
    now: Level | None = None
    """The last sample."""
    peak_device: int | None = None
    peak_process: int | None = None
    samples: int = 0
    others: dict[int, GpuProcess] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)

    def growth(self, now: Level, ours: Container[int]) -> int | None:
        """Return the bytes that the device has grown by, without the growth of other processes.

        Returns None if the two readings cannot be compared.
        """
        before = self.before
        if before is None or before.memory.version != now.memory.version:
            return None
        others = _sum_of_others(now, ours) - _sum_of_others(before, ours)
        return max(0, now.memory.used - before.memory.used - others)

    def add_sample(self, now: Level, process: int | None, ours: Container[int]) -> None:
        """Add a sample to the peaks; ``process``: bytes that the run held, None if unknown."""
        self.samples += 1
        self.now = now
        self.others |= {user.pid: user for user in now.users or () if user.pid not in ours}
        self.peak_device = max(self.peak_device or 0, now.memory.used)
        if process is not None:
            self.peak_process = max(self.peak_process or 0, process)

    def to_reading(self, driver: str, interval: float) -> GpuReading:
        """Return the record of all samples."""
        memory = self.before.memory if self.before is not None else None
        return GpuReading(
            uuid=self.card.uuid,
            name=self.card.name,
            driver=driver,
            total=memory.total if memory else None,
            memory_info=memory.version if memory else "unknown",
            driver_reserved=memory.driver_reserved if memory else None,
            source=self.source,
            moments=tuple(self.moments),
            peak_device=self.peak_device,
            peak_process=self.peak_process,
            samples=self.samples,
            interval=interval,
            others=tuple(self.others.values()),
            warnings=tuple(self.warnings),
        )


def is_wsl() -> bool:
    """Return True on Linux under Windows, whose driver moves GPU memory to main memory."""
    return "microsoft" in platform.release().lower()


def _sum_of_others(level: Level, ours: Container[int]) -> int:
    """Return the bytes that processes of others hold on a card."""
    return sum(user.bytes or 0 for user in level.users or () if user.pid not in ours)


class Sampler:
    """A sampler of the GPU memory of one run."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.interval = interval
        self.failure: str | None = None
        """Why the figures are missing, or end early."""
        self._nvml: Nvml | None = None
        self._driver = ""
        self._cuda_total: int | None = None
        self._cards: Sequence[Card] = ()
        self._before: dict[str, Level] = {}
        self._watched: CardWatch | None = None
        self._ours: tuple[int, ...] = ()
        """Process IDs of the run, as NVML lists them."""
        self._moments: list[Moment] = []
        self._next = 0.0
        try:
            self._nvml = Nvml()
            self._driver = self._nvml.driver
            self._cards = self._nvml.list_cards()
        except NvmlError as error:
            self.failure = str(error)

    def close(self) -> None:
        """Close the connection to the driver."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def tick(self) -> None:
        """Take a sample if one is due."""
        if self._watched is None or self.failure is not None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.interval
        try:
            self._sample(self._watched)
        except NvmlError as error:
            self.failure = str(error)

    def record_moment(self, name: str, facts: dict[str, Any], pid: int) -> None:
        """Sample the card while the run waits at a named point, and keep the reading."""
        device = process = None
        self._cuda_total = facts.get("cuda_total", self._cuda_total)
        if self.failure is None:
            try:
                device, process = self._read_moment(name, facts, pid)
            except NvmlError as error:
                self.failure = str(error)
        self._moments.append(
            Moment(
                name=name,
                device=device,
                process=process,
                cuda_used=facts.get("cuda_used"),
                reserved=facts.get("reserved"),
            )
        )

    def _read_moment(
        self, name: str, facts: dict[str, Any], pid: int
    ) -> tuple[int | None, int | None]:
        """Return the bytes used on the card and by the run, at a named point."""
        if name == "before":
            for card in self._cards:
                # Only the card that is used later has to answer.
                with contextlib.suppress(NvmlError):
                    self._before[card.uuid] = read_level(card)
            return None, 0
        if self._watched is None:
            self._watched = self._find_card(facts.get("uuid"), pid)
        return self._sample(self._watched)

    def _find_card(self, uuid: str | None, pid: int) -> CardWatch:
        """Find the card of the run, and decide which process on it is ours."""
        card = find_by_uuid(self._cards, uuid)
        now, before = read_level(card), self._before.get(card.uuid)
        found = CardWatch(card=card, before=before, moments=self._moments)
        if is_wsl():
            found.warnings.append(
                "WSL moves GPU memory to main memory: a run that succeeds may still not fit"
            )
        earlier = {user.pid for user in (before.users if before else None) or ()}
        users = {user.pid: user for user in now.users or ()}
        new = [user for user in users.values() if user.pid not in earlier]
        mine = users.get(pid) or (new[0] if len(new) == 1 else None)
        self._ours = (mine.pid,) if mine is not None else ()
        if mine is not None and mine.bytes is not None:
            found.source = "process" if mine.pid == pid else "appeared"
        elif mine is None and new:
            found.source = "unknown"
            found.warnings.append(
                f"{len(new)} processes appeared on the GPU at once, and NVML does not say which "
                "is ours: its memory is not known"
            )
        else:
            found.warnings.append(_explain_difference(now, mine))
        if before is not None and self._moments:
            self._moments[0] = Moment(name="before", device=before.memory.used, process=0)
        found.warnings += [
            _describe_sharing(user) for user in users.values() if user.pid in earlier
        ]
        return found

    def _sample(self, watched: CardWatch) -> tuple[int, int | None]:
        """Sample the run's card; return the bytes used on it and by the run."""
        now = read_level(watched.card)
        known = set(watched.others) | set(self._ours)
        if watched.samples:
            late = (user for user in now.users or () if user.pid not in known)
            watched.warnings += [_describe_sharing(user) for user in late]
        process = None
        if watched.source == "difference":
            process = watched.growth(now, self._ours)
        elif watched.source != "unknown":
            process = next((u.bytes for u in now.users or () if u.pid in self._ours), None)
        watched.add_sample(now, process, self._ours)
        return now.memory.used, process

    def measurement_fields(self) -> dict[str, Any]:
        """Return the fields of a ``Measurement`` that NVML gives, and why some are unknown."""
        gpu = self.reading()
        used = gpu.peak_process if gpu is not None else None
        unknown = {}
        if used is None:
            unknown["process_used"] = self.failure or "NVML listed no process of the run"
        if gpu is None:
            unknown["gpu"] = self.failure or "the run never said which card it used"
        return {"gpu": gpu, "process_used": used, "unknown": unknown}

    def reading(self) -> GpuReading | None:
        """Return the record of all samples; None if no card was found (see ``failure``)."""
        if self._watched is None:
            return None
        found = self._watched.to_reading(self._driver, self.interval)
        warnings = (*found.warnings, *((self.failure,) if self.failure else ()))
        return replace(found, cuda_total=self._cuda_total, warnings=warnings)


def find_by_uuid(cards: Sequence[Card], uuid: str | None) -> Card:
    """Return the card, or its MIG slice, with a UUID as PyTorch gives it, without the prefix.

    A program on a card that is cut into slices sees only the slice in CUDA_VISIBLE_DEVICES.

    Raises:
        NvmlError: no card has the UUID, or the slice is unknown.
    """
    bare = (uuid or "").removeprefix("GPU-").removeprefix("MIG-")
    alike = [card for card in cards if card.uuid.split("-", 1)[-1] == bare]
    if not alike:
        why = f"NVML knows no card with the UUID {uuid}" if uuid else "the run names no card"
        raise NvmlError("missing", f"{why}.")
    card = min(alike, key=lambda card: not card.mig)
    if not card.mig_enabled:
        return card
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    slices = [one for one in cards if given.startswith("MIG-") and one.uuid.startswith(given)]
    if len(slices) != 1:
        raise NvmlError(
            "divided", "The card is cut into MIG slices, and NVML does not say which is ours."
        )
    return slices[0]


def _describe_sharing(user: GpuProcess) -> str:
    size = format_bytes(user.bytes) if user.bytes is not None else "an unknown amount"
    return f"the GPU is shared: {user.name} (process {user.pid}) holds {size} of it"


def _explain_difference(level: Level, mine: GpuProcess | None) -> str:
    """Return why the device's growth is used in place of the process's memory."""
    if level.users is None:
        reason = "the driver lists no processes"
    elif mine is not None:
        reason = "the driver gives no memory of single processes (WSL, MIG or a virtual GPU)"
    else:
        reason = "the driver does not list this process (a container without --pid=host?)"
    return f"{reason}: the growth of the whole device is used instead"
