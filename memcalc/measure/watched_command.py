"""Runs any command and watches its memory from outside: NVML, and main memory of its processes."""

import contextlib
import functools
import os
import resource
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from memcalc.children.child import die_with
from memcalc.errors import UsageError
from memcalc.measure.gpu.nvml import Nvml, NvmlError
from memcalc.measure.gpu.sampler import Watched, level_of
from memcalc.records.measurement import GpuReading, Measurement, Moment
from memcalc.records.plan import Plan

INTERVAL = 0.1


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, and what it held."""

    code: int
    """As a shell gives it: 128 and the signal where one ended it."""
    measurement: Measurement
    """Of the GPU it held most of."""
    gpus: tuple[GpuReading, ...]
    """Of all GPUs it held memory of."""


class CommandNow(msgspec.Struct, frozen=True):
    """A command that runs, at one sample."""

    seconds: float
    """Since it began."""
    pids: frozenset[int]
    """Of its processes."""
    resident: int
    """Bytes of main memory, the most so far."""
    cards: tuple[Watched, ...]
    reason: str
    """Why there are no readings of a GPU; empty: there are."""


def run(
    command: Sequence[str],
    interval: float = INTERVAL,
    *,
    environment: Mapping[str, str] | None = None,
    seen: Callable[[CommandNow], None] | None = None,
    show: Callable[[str], None] | None = None,
) -> CommandResult:
    """Run a command to its end.

    Args:
        command: its words.
        interval: seconds between samples.
        environment: its variables; None: those of this process.
        seen: called with each sample.
        show: called with each line that it prints; None: it has this process's streams.

    Raises:
        UsageError: it cannot be started.
    """
    with _cards() as (nvml, watched, reason):
        began, floor = time.monotonic(), _largest(resource.RUSAGE_SELF)
        process = _start(command, environment, piped=show is not None)
        resident, ours = 0, set[int]()
        with _passing_signals(process), _showing(process, show):
            while process.poll() is None:
                pids, together = _family(process.pid)
                # The driver may list a process a little longer than it lives.
                ours |= pids
                resident = max(resident, together, _peak(process.pid))
                reason = _sample(watched, ours) or reason
                if seen is not None:
                    cards, pids_so_far = tuple(watched), frozenset(ours)
                    seen(CommandNow(time.monotonic() - began, pids_so_far, resident, cards, reason))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(interval)
        seconds = time.monotonic() - began
        # A command may be over before it is looked at, and the kernel has kept its largest; but
        # until it was started, it counts memcalc's own memory as that of the command.
        kept = _largest(resource.RUSAGE_CHILDREN)
        resident = max(resident, kept if kept > floor else 0)
        driver = nvml.driver if nvml is not None else ""
        gpus = [_read(one, driver, interval) for one in watched]
        code = process.returncode
    held = sorted((gpu for gpu in gpus if gpu.peak_process), key=lambda g: -(g.peak_process or 0))
    measurement = _measurement(command, held[0] if held else None, reason, resident, seconds)
    return CommandResult(
        code=code if code >= 0 else 128 - code, measurement=measurement, gpus=tuple(held)
    )


def _start(
    command: Sequence[str], environment: Mapping[str, str] | None, *, piped: bool
) -> subprocess.Popen[bytes]:
    """Start a command, whose output is ``piped`` or goes to this process's streams.

    Raises:
        UsageError: it cannot be started.
    """
    # Should this process die, the command is asked to end.
    dies = functools.partial(die_with, os.getpid(), signal.SIGTERM)
    streams: dict[str, Any] = {}
    if piped:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        return subprocess.Popen(command, preexec_fn=dies, env=environment, **streams)
    except OSError as error:
        raise UsageError(f"Cannot run {command[0]!r}: {error.strerror}.") from None


def _read(watched: Watched, driver: str, interval: float) -> GpuReading:
    """Return all that was seen of a card, with a warning for each process of others."""
    others = watched.others.values()
    watched.warnings = [f"the GPU is shared with {u.name} (process {u.pid})" for u in others]
    return watched.reading(driver, interval)


def _family(root: int) -> tuple[set[int], int]:
    """A process and all that it has started, and the sum of their resident sets in bytes.

    Memory that processes share counts in each.
    """
    pids, together = {root}, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(root)
        for one in (parent, *parent.children(recursive=True)):
            pids.add(one.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                together += one.memory_info().rss
    return pids, together


def _peak(pid: int) -> int:
    """The largest resident set of one process since its program was started; 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
    except (OSError, ValueError, IndexError):
        return 0


def _largest(whose: int) -> int:
    """Bytes of the largest resident set that the kernel has seen of these processes."""
    return resource.getrusage(whose).ru_maxrss * 1024


@contextlib.contextmanager
def _cards() -> Iterator[tuple[Nvml | None, list[Watched], str]]:
    try:
        nvml = Nvml()
    except NvmlError as error:
        yield None, [], str(error)
        return
    watched, reason = [], ""
    try:
        for card in nvml.cards():
            if not card.divided:
                before = level_of(card)
                start = Moment(name="before", device=before.memory.used, process=0)
                watched.append(Watched(card=card, before=before, moments=[start]))
    except NvmlError as error:
        reason = str(error)
    try:
        yield nvml, watched, reason
    finally:
        nvml.close()


@contextlib.contextmanager
def _showing(
    process: subprocess.Popen[bytes], show: Callable[[str], None] | None
) -> Iterator[None]:
    """Hand on what a process prints, line by line, while the context lasts."""
    stream = process.stdout
    if stream is None or show is None:
        yield
        return

    def hand_on() -> None:
        for line in stream:
            show(line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2])

    thread = threading.Thread(target=hand_on, daemon=True)
    thread.start()
    yield
    # A process that it left behind may keep the stream open.
    thread.join(timeout=1)


@contextlib.contextmanager
def _passing_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass requests to end on to the command, and stay to report.

    A terminal itself sends Ctrl-C to all that runs in its foreground.
    """

    def interrupt(number: int, _: object) -> None:
        if not _is_in_foreground():
            process.send_signal(number)

    before = [
        signal.signal(signal.SIGINT, interrupt),
        signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number)),
    ]
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _is_in_foreground() -> bool:
    """Return whether Ctrl-C at the terminal of this process, if it has one, reaches its group."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _sample(watched: list[Watched], pids: set[int]) -> str:
    """Take a sample of every card; returns why there is none."""
    for one in watched:
        try:
            now = level_of(one.card)
        except NvmlError as error:
            return str(error)
        ours = {user.pid: user for user in now.users or () if user.pid in pids}
        source = "process" if ours else "appeared"
        if not ours:
            first = {user.pid for user in (one.before.users if one.before else None) or ()}
            ours = {user.pid: user for user in now.users or () if user.pid not in first}
        held: int | None = 0
        if ours and all(user.bytes is not None for user in ours.values()):
            one.source = source
            held = sum(user.bytes or 0 for user in ours.values())
        elif one.source == "difference":
            held = one.grown(now, ours)
        # Else ours has let go of the card; its peak was read before.
        one.take(now, held, ours)
    return ""


def _measurement(
    command: Sequence[str], gpu: GpuReading | None, reason: str, resident: int, seconds: float
) -> Measurement:
    unknown = dict.fromkeys(("weights", "gradients", "state", "phases"), "seen from outside only")
    if gpu is None:
        unknown["process_used"] = reason or "the command held no GPU memory when it was looked at"
    if not resident:
        unknown["peak_rss"] = "the command was over before it was looked at"
    return Measurement(
        plan=Plan(model=shlex.join(command), target="cuda" if gpu is not None else "cpu"),
        device=gpu.name if gpu is not None else "cpu",
        process_used=gpu.peak_process if gpu is not None else None,
        peak_rss=resident or None,
        gpu=gpu,
        seconds=seconds,
        unknown=unknown,
    )
