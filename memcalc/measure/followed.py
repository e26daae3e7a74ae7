"""Samples of PyTorch's allocator in the Python processes of a command."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

_FOLDER = "MEMCALC_FOLLOWED"
_HOOK = Path(__file__).parent / "follow_script"


class WatchedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A Python process that uses PyTorch on CUDA."""

    pid: int
    steps: int
    """Optimizer steps so far."""
    allocated: tuple[int, ...]
    """Bytes at each sample, on all its GPUs."""
    peak: int
    """Bytes, by PyTorch's own counter."""


@contextlib.contextmanager
def follow(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Path]]:
    """Yield variables that make Python processes write memory samples, and the samples' folder."""
    with tempfile.TemporaryDirectory(prefix="memcalc-watch-") as folder:
        before = environment.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (str(_HOOK), before)))
        yield {**environment, "PYTHONPATH": path, _FOLDER: folder}, Path(folder)


def read(folder: Path) -> tuple[WatchedProcess, ...]:
    """Return the processes that wrote samples so far, in the order they began."""
    found = []
    for file in sorted(folder.iterdir(), key=lambda one: one.stat().st_ctime):
        # The last line may still be written.
        whole = file.read_bytes().rpartition(b"\n")[0]
        samples = [tuple(map(int, line.split())) for line in whole.splitlines()]
        if samples:
            steps, _, peak = samples[-1]
            levels = tuple(one[1] for one in samples)
            found.append(
                WatchedProcess(pid=int(file.name), steps=steps, allocated=levels, peak=peak)
            )
    return tuple(found)
