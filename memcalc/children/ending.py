"""One sentence on how a process ended that did not end well."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

_COUNTERS = ("/sys/fs/cgroup/memory.events", "/proc/vmstat")


def oom_kills() -> int | None:
    """How many processes the kernel has killed so far for lack of memory; ``None``: unknown."""
    counts = []
    for name in _COUNTERS:
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", Path(name).read_text(), re.MULTILINE)
            if found is not None:
                counts.append(int(found[1]))
    return sum(counts) if counts else None


def epitaph(status: int | None, noise: str, kills: int | None, *, garbled: bool) -> str:
    """Say why a run ended without an answer.

    Args:
        status: of ``waitpid``; ``None``: not known.
        noise: what the run wrote to standard error.
        kills: ``oom_kills`` from before the run.
        garbled: it said something that could not be read.
    """
    last = noise.strip().rsplit("\n", 1)[-1].strip()[:200]
    said = f": {last}" if last else ""
    if garbled:
        return f"What the run said cannot be read{said}."
    if status is not None and os.WIFSIGNALED(status):
        return f"The run was {_killed(os.WTERMSIG(status), kills)}{said}."
    code = os.WEXITSTATUS(status) if status is not None else "unknown"
    return f"The run ended without an answer (exit code {code}){said}."


def _killed(number: int, kills: int | None) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if name != "SIGKILL":
        return f"ended by {name}"
    now = oom_kills()
    if kills is None or now is None:
        return "killed, most likely by the kernel for lack of memory"
    if now > kills:
        return "killed by the kernel: the machine ran out of memory"
    return "killed from outside (SIGKILL)"
