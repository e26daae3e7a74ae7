"""Describes in one sentence how a process failed."""

import contextlib
import os
import re
import signal
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memcalc import shadowing
from memcalc.errors import MemcalcError, UsageError

_COUNTERS = ("/sys/fs/cgroup/memory.events", "/proc/vmstat")
_LONGEST = 200
_LINES = 20
"""An error of more lines holds the log of a compiler: its beginning says what failed."""
_LONGEST_REASON = 300


def oom_kills() -> int | None:
    """Return the number of processes that the kernel has killed for lack of memory, if known."""
    counts = []
    for name in _COUNTERS:
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", Path(name).read_text(), re.MULTILINE)
            if found is not None:
                counts.append(int(found[1]))
    return sum(counts) if counts else None


def ending(
    name: str, code: int | None, *, kills: int | None = None, where: str = "", noise: str = ""
) -> str:
    """Return a sentence on how a process ended without an answer: its exit code or signal.

    ``code`` is its exit code, below zero a signal's number; ``kills`` are ``oom_kills`` of before;
    ``where`` is its last place, as breadcrumbs say it; of its ``noise`` on standard error the last
    line is repeated.
    """
    last = noise.strip().rsplit("\n", 1)[-1].strip()[:_LONGEST]
    if code is not None and code < 0:
        how = f"was {_describe_kill(-code, kills)}"
    else:
        known = code if code is not None else "unknown"
        how = f"ended without an answer (exit code {known})"
    return f"The {name} {how}{where}{f': {last}' if last else ''}."


def serialize_error(error: BaseException, name: str, where: str) -> dict[str, Any]:
    """Return an error as a message to the asking process: one sentence and its exit code."""
    if os.environ.get("MEMCALC_DEBUG"):
        traceback.print_exception(error)
    if hidden := next(filter(None, map(shadowing.describe, causes(error))), ""):
        return {"error": hidden, "exit_code": UsageError.exit_code}
    if isinstance(error, MemcalcError):
        return {"error": str(error), "exit_code": error.exit_code}
    text = format_error(error)
    reason = " ".join(text.split())
    if text.count("\n") > _LINES:
        reason = reason.partition(": [")[0]
    reason = reason[:_LONGEST_REASON] or "no reason given"
    said = f"{type(error).__name__}: {reason}"
    if isinstance(error, SystemExit):
        said = (
            f"its code called sys.exit({format_error(error.code, repr)}), as scripts do that read "
            "arguments: type memcalc simulate -- python SCRIPT to run all of it"
        )
    elif isinstance(error, RecursionError):
        said = "its code recursed too deeply"
    helps = advice(error)
    sentence = f"The {name} stopped{where}: {said}{f'; {helps}' if helps else ''}"
    return {"error": sentence, "exit_code": MemcalcError.exit_code}


def read_end(descriptor: int) -> str:
    """Return the last 64 KiB written to a file as text, or empty for a terminal or pipe."""
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
    except OSError:
        return ""


def _describe_kill(number: int, kills: int | None) -> str:
    """Name the signal that ended a process, or say that the kernel had no memory left."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if name != "SIGKILL":
        return f"ended by {name}"
    now = oom_kills()
    if kills is None or now is None:
        return "killed, most likely by the kernel for lack of memory"
    if now > kills:
        return "killed by the kernel: the machine ran out of memory"
    return "killed from outside (SIGKILL)"


GARBLED = (
    "The {} sent an unreadable message: its code may write to descriptors that it has not opened."
)
"""What is said of a process, by its name, whose answer is none."""
_ADVICE = tomllib.loads(Path(__file__).with_name("advice.toml").read_text("utf-8"))["advice"]


def advice(error: BaseException | None) -> str:
    """Return one sentence on what a user can do about an error, or an empty text."""
    for one in causes(error):
        raised_in = (frame.f_code.co_name for frame, _ in traceback.walk_tb(one.__traceback__))
        said = f"{' '.join(raised_in)}: {format_error(one)}"
        for known in _ADVICE:
            if re.search(known["where"], said):
                return str(known["says"])
    return ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it (cause or context), each once."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def format_error(error: object, show: Callable[[object], str] = str) -> str:
    """Return the text of an error by ``show``, or a fixed text if that raises."""
    try:
        return show(error)
    except (Exception, SystemExit):
        return "it cannot be shown"
