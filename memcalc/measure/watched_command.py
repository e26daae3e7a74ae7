"""Runs any command and watches its GPU memory (NVML) and main memory from outside."""

import contextlib
import functools
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from memcalc.children import keeper
from memcalc.children.child import die_with
from memcalc.errors import UsageError
from memcalc.measure.gpu.nvml import Nvml, NvmlError
from memcalc.measure.gpu.sampler import CardWatch, read_level
from memcalc.records.measurement import GpuReading, Measurement, Moment
from memcalc.records.plan import Plan

INTERVAL = 0.1
"""Seconds between samples."""
_MARK = "MEMCALC_RUN"
"""Variable in the environment of all processes of a command."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """The exit code of a command, and the memory it held."""

    code: int
    """The exit code as a shell gives it: 128 + signal if a signal ended the command."""
    measurement: Measurement
    """The measurement on the GPU on which it held most memory."""
    gpus: tuple[GpuReading, ...]
    """The readings of all GPUs on which it held memory."""


class CommandNow(msgspec.Struct, frozen=True):
    """A sample of a running command."""

    seconds: float
    """Since it began."""
    pids: frozenset[int]
    """Of its processes."""
    resident: int
    """Bytes of main memory, the most so far."""
    cards: tuple[CardWatch, ...]
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
    """Run a command to its end; return its exit code, and its GPU and main memory.

    Args:
        command: its words.
        interval: seconds between samples.
        environment: its variables; None: this process's.
        seen: called with each sample.
        show: called with each line that it prints; None: it has this process's streams.

    Raises:
        UsageError: it cannot be started.
    """
    with _open_cards() as (nvml, watched, reason):
        began, floor = time.monotonic(), _largest_resident_set(resource.RUSAGE_SELF)
        mark = f"{_MARK}={uuid.uuid4().hex}"
        process = _start(command, environment, mark, piped=show is not None)
        resident, ours = 0, set[int]()
        with _end_together(mark), _forward_signals(process), _show_output(process, show):
            while process.poll() is None:
                pids, together = _list_processes(process.pid)
                # The driver may list a process a little longer than it lives.
                ours |= pids
                resident = max(resident, together, _peak_resident_set(process.pid))
                reason = _sample(watched, ours) or reason
                if seen is not None:
                    cards, pids_so_far = tuple(watched), frozenset(ours)
                    seen(CommandNow(time.monotonic() - began, pids_so_far, resident, cards, reason))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(interval)
        seconds = time.monotonic() - began
        # A command may end before its first sample; the kernel has kept its maximum. But before
        # exec, the kernel counts memcalc's own memory as the command's.
        kept = _largest_resident_set(resource.RUSAGE_CHILDREN)
        resident = max(resident, kept if kept > floor else 0)
        driver = nvml.driver if nvml is not None else ""
        gpus = [_make_reading(one, driver, interval) for one in watched]
        code = process.returncode
    held = sorted((gpu for gpu in gpus if gpu.peak_process), key=lambda g: -(g.peak_process or 0))
    measurement = _make_measurement(command, held[0] if held else None, reason, resident, seconds)
    return CommandResult(
        code=code if code >= 0 else 128 - code, measurement=measurement, gpus=tuple(held)
    )


def _start(
    command: Sequence[str], environment: Mapping[str, str] | None, mark: str, *, piped: bool
) -> subprocess.Popen[bytes]:
    """Start a command, whose output is ``piped`` or goes to this process's streams.

    ``mark``: a variable and its value, by which its processes are known.

    Raises:
        UsageError: it cannot be started.
    """
    # Should this process die, the command is asked to end.
    dies = functools.partial(die_with, os.getpid(), signal.SIGTERM)
    streams: dict[str, Any] = {}
    if piped:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        given = {**(os.environ if environment is None else environment), _MARK: mark.split("=")[1]}
        return subprocess.Popen(command, preexec_fn=dies, env=given, **streams)
    except OSError as error:
        script = command[0].endswith(".py") and os.path.isfile(command[0])
        why = f"it is a script: type python {command[0]}" if script else error.strerror
        if command[0].startswith("-"):
            why = "memcalc has no such option; the program stands first, as in -- python train.py"
        raise UsageError(f"Cannot run {command[0]!r}: {why}.") from None


@contextlib.contextmanager
def _end_together(mark: str) -> Iterator[None]:
    """Ask all processes with a mark to end, should this process be killed in this context."""
    watches = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), mark]
    with subprocess.Popen(watches, stdin=subprocess.DEVNULL, start_new_session=True) as ends:
        try:
            yield
        finally:
            ends.kill()


def _make_reading(watched: CardWatch, driver: str, interval: float) -> GpuReading:
    """Return a card's reading, with a warning for each process of others on it."""
    others = watched.others.values()
    watched.warnings = [f"the GPU is shared with {u.name} (process {u.pid})" for u in others]
    return watched.to_reading(driver, interval)


def _list_processes(root: int) -> tuple[set[int], int]:
    """Return the IDs of a process and its descendants, and the sum of their resident sets in bytes.

    Memory that processes share counts in each of them.
    """
    pids, together = {root}, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(root)
        for one in (parent, *parent.children(recursive=True)):
            pids.add(one.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                together += one.memory_info().rss
    return pids, together


def _peak_resident_set(pid: int) -> int:
    """Return the largest resident set of a process since exec, in bytes; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
    except (OSError, ValueError, IndexError):
        return 0


def _largest_resident_set(whose: int) -> int:
    """Return the largest resident set in bytes; ``whose``: ``resource.RUSAGE_SELF`` or CHILDREN."""
    return resource.getrusage(whose).ru_maxrss * 1024


@contextlib.contextmanager
def _open_cards() -> Iterator[tuple[Nvml | None, list[CardWatch], str]]:
    """Yield the connection to NVML, a watch for each card, and why some are missing."""
    try:
        nvml = Nvml()
    except NvmlError as error:
        yield None, [], str(error)
        return
    watched, reason = [], ""
    try:
        for card in nvml.list_cards():
            if not card.mig_enabled:
                before = read_level(card)
                start = Moment(name="before", device=before.memory.used, process=0)
                watched.append(CardWatch(card=card, before=before, moments=[start]))
    except NvmlError as error:
        reason = str(error)
    try:
        yield nvml, watched, reason
    finally:
        nvml.close()


@contextlib.contextmanager
def _show_output(
    process: subprocess.Popen[bytes], show: Callable[[str], None] | None
) -> Iterator[None]:
    """Show each line that a process prints, while the context lasts."""
    stream = process.stdout
    if stream is None or show is None:
        yield
        return

    def show_lines() -> None:
        for line in stream:
            show(line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2])

    thread = threading.Thread(target=show_lines, daemon=True)
    thread.start()
    yield
    # A process that it left behind may keep the stream open.
    thread.join(timeout=1)


@contextlib.contextmanager
def _forward_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward signals to the command and its child processes, and keep running to report.

    A terminal itself sends Ctrl-C to all processes in its foreground.
    """

    def pass_on(number: int, _: object) -> None:
        if number == signal.SIGINT and _is_in_foreground():
            return
        # The command first, or else a shell goes on with what comes next.
        for pid in (process.pid, *_list_processes(process.pid)[0] - {process.pid}):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    before = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Return True if Ctrl-C at this process's terminal reaches its process group."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _sample(watched: list[CardWatch], pids: set[int]) -> str:
    """Sample every card's memory; return the error of NVML, or an empty string."""
    for one in watched:
        try:
            now = read_level(one.card)
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
            held = one.growth(now, ours)
        # Else ours has let go of the card; its peak was read before.
        one.add_sample(now, held, ours)
    return ""


def _make_measurement(
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
