"""Venvs in memcalc's cache that are made once: engine environments, and releases of cuDNN.

Each is filled under a lock, and gets its marker last: a folder without marker is unfinished.
"""

import contextlib
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from memcalc.children import command
from memcalc.engine.environment.uv import Uv, list_sizes, size_text, sum_sizes
from memcalc.errors import EstimateError
from memcalc.files import cache
from memcalc.files.offline import HOW, is_offline
from memcalc.files.untrusted_values import reason
from memcalc.records.progress import Progress, tell

_MARKER = "memcalc-complete.json"
_LARGE = 1 << 20
"""Bytes from which a file is looked at again whenever the folder is used."""
_PATIENCE = 3600.0
"""Seconds to wait for another memcalc; a slow line takes a quarter of that for PyTorch."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a complete folder."""

    files: dict[str, int]
    """Sizes of its large files and of what describes its packages."""
    bytes: int


def parent() -> Path:
    """Return the folder in memcalc's cache that has all environments."""
    return cache.folder().absolute() / "environments"


def locate(name: str) -> Path:
    """Return the path of an environment, made or not, for this Python and machine."""
    from packaging.tags import sys_tags

    machine = sysconfig.get_platform().rpartition("-")[2]
    return parent() / f"{name}-{next(sys_tags()).abi}-{machine}"


def read_marker(path: Path) -> Marker | None:
    """Return the marker of a folder, or None if it is missing, unfinished or damaged."""
    try:
        marker = msgspec.json.decode((path / _MARKER).read_bytes(), type=Marker)
        whole = all(os.stat(path / file).st_size == size for file, size in marker.files.items())
    except (OSError, ValueError):
        return None
    return marker if whole else None


def existing() -> dict[Path, Marker | None]:
    """Return all environments with their markers; None: unfinished or damaged."""
    try:
        entries = sorted(entry for entry in parent().iterdir() if entry.is_dir())
    except OSError:
        return {}
    return {entry: read_marker(entry) for entry in entries}


def make(name: str, what: str, needed: float, fill: Callable[[Uv], None]) -> Path:
    """Return an environment by its name; if it is missing, make a venv and call ``fill`` on it.

    ``what`` names it in a sentence; ``needed`` is the bytes of disk while it is filled.

    Raises:
        EstimateError: nothing may be fetched, the cache cannot be written, or what ``fill`` raises.
    """
    path = locate(name)
    if read_marker(path) is not None:
        return path
    if is_offline():
        raise EstimateError(
            f"{what} is not in {parent()} yet, and {HOW} forbids fetching it: "
            "run the same command once without that; it is kept."
        )
    with _hold_lock():
        if read_marker(path) is not None:
            return path
        _require_room(needed, what)
        try:
            for left in (one for one, marker in existing().items() if marker is None):
                # By a memcalc that was killed, or damaged.
                shutil.rmtree(left, ignore_errors=True)
            path.mkdir()
            with command.vanishing(path):
                uv = Uv(path)
                fill(uv)
                shutil.rmtree(uv.scratch, ignore_errors=True)
            _write_marker(path)
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)
            if isinstance(error, OSError):
                raise EstimateError(f"Cannot write {parent()}: {reason(error)}.") from None
            raise
        finally:
            tell(Progress("", 1.0))
    return path


@contextlib.contextmanager
def _hold_lock() -> Iterator[None]:
    """Hold the lock for making environments, or raise why the cache cannot be used."""
    from filelock import FileLock, Timeout

    place = parent()
    if os.pathsep in str(place):
        raise EstimateError(
            f"PYTHONPATH cannot hold {place}: set MEMCALC_CACHE to a folder without colons in its "
            "name."
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EstimateError(
            f"Cannot make {place}: {reason(error)}; set MEMCALC_CACHE to a folder that can be "
            "written."
        ) from None
    lock = FileLock(place / "install.lock", poll_interval=0.02)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            tell(Progress("another memcalc is making an engine environment: waiting for it"))
            lock.acquire(timeout=_PATIENCE)
    except Timeout:
        raise EstimateError(
            f"Another memcalc has held {place} for an hour: end it, or set MEMCALC_CACHE to "
            "another folder."
        ) from None
    except OSError:
        raise EstimateError(
            f"{place} cannot be written: set MEMCALC_CACHE to a folder that can be."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _require_room(needed: float, what: str) -> None:
    free = shutil.disk_usage(parent()).free
    if free < needed:
        raise EstimateError(
            f"{what} needs about {size_text(needed)} in {parent()} while it is installed, and "
            f"{size_text(free)} are free: make room, or set MEMCALC_CACHE to a folder on a larger "
            "disk."
        )


def _write_marker(path: Path) -> None:
    """Write the marker of a filled environment: the sizes of its large files."""
    files = {
        os.path.relpath(file, path): size
        for file, size in list_sizes(path)
        if size >= _LARGE or os.path.basename(file) in ("METADATA", "version.py")
    }
    marker = Marker(files=files, bytes=sum_sizes(path))
    (path / _MARKER).write_bytes(msgspec.json.encode(marker))
