"""A process's children, and the main memory they hold together (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def members(root: int) -> set[int]:
    """A process, its children, theirs, and so on."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent(int(name))
            if parent is not None:
                parents[int(name)] = parent
    found = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def resident(pids: set[int]) -> int:
    """Sum of the resident sets; memory that processes share counts in each."""
    return sum(_resident(pid) for pid in pids)


def peak(pid: int) -> int:
    """The largest resident set of one process since its program was started; 0: it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    except (OSError, ValueError, IndexError):
        return 0


def _parent(pid: int) -> int | None:
    try:
        # The name, in parentheses, may hold anything; what follows it is numbers.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
