"""How much of a large wheel has arrived, seen from the files that grow on disk."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from memcalc.engine.environment import sizes
from memcalc.engine.environment.installer import Job, Tool
from memcalc.records.progress import Progress, tell

_SHARE = 0.7
"""Of pip's time that a download takes; the rest unpacks."""


class Watch:
    """Called while an installer runs."""

    def __init__(self, job: Job, tool: Tool, named: str, size: float, unpacked: float) -> None:
        self._pip = tool.name == "pip"
        self._named = named
        self._size, self._unpacked = size, unpacked
        self._folder = job.scratch if self._pip else _uv_cache(tool)
        self._began = time.time()
        self._least = 0.0

    def __call__(self) -> None:
        """Tell how far it is."""
        if self._pip:
            seen, whole = self._bytes("pip-*/*.whl"), self._size
        else:
            seen, whole = self._bytes(".tmp*/torch/lib/*"), self._unpacked
        unpacking = self._pip and (seen >= 0.99 * whole or self._least >= _SHARE)
        share = _SHARE if self._pip else 1.0
        fraction = 0.99 if unpacking else min(share * seen / whole, 0.99)
        self._least = max(self._least, fraction)
        what = (
            "unpacking" if unpacking else f"fetching ({sizes.text(seen)})" if seen else "fetching"
        )
        tell(Progress(f"{self._named}: {what}", self._least))

    def _bytes(self, pattern: str) -> int:
        """Bytes of files of this run; another program's may be in uv's cache too."""
        total = 0
        try:
            for path in self._folder.glob(pattern):
                status = os.stat(path)
                total += status.st_size if status.st_mtime >= self._began - 1 else 0
        except OSError:
            pass
        return total


def _uv_cache(tool: Tool) -> Path:
    try:
        done = subprocess.run(
            [*tool.command, "cache", "dir"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return Path(os.devnull)
    return Path(done.stdout.strip() or os.devnull)
