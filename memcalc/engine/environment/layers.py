"""Folders of packages in memcalc's cache: each is made once, whole or not at all.

A folder is filled under a name of its own, gets its marker last and is then renamed, so that a
folder under its final name is complete. One process makes folders at a time; an installer whose
memcalc was killed fills a folder that nobody uses.
"""

import contextlib
import os
import secrets
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from memcalc.errors import EstimateError, UsageError
from memcalc.files import cache, lock
from memcalc.files.untrusted_values import reason
from memcalc.records.progress import Progress, tell

_MARKER = "memcalc-complete.json"
_UNFINISHED = ".making-"
_ABSENT = ".absent-"
_DAY = 86400.0
_LARGE = 1 << 20
"""Bytes from which a file is looked at again whenever the folder is used."""
_PATIENCE = 3600.0
"""Seconds to wait for another memcalc; a slow line takes a quarter of that for PyTorch."""


class AbsentError(EstimateError):
    """No package index has what was asked for."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What a complete folder holds."""

    files: dict[str, int]
    """Sizes of its large files and of what describes its packages."""
    bytes: int
    notes: tuple[str, ...] = ()


class Layer(msgspec.Struct, frozen=True):
    """A complete folder."""

    path: Path
    marker: Marker

    @property
    def name(self) -> str:
        """Its package, release and the Python it is for."""
        return self.path.name


class Built(msgspec.Struct, frozen=True):
    """What a folder was filled with."""

    name: str
    notes: tuple[str, ...] = ()


def folder() -> Path:
    """Where all of them are."""
    return cache.folder().absolute() / "environments"


def suffix() -> str:
    """For which Python and machine a folder is: ``cp311-x86_64``."""
    from packaging.tags import sys_tags

    machine = sysconfig.get_platform().rpartition("-")[2]
    return f"{next(sys_tags()).abi}-{machine}"


def complete(name: str) -> Layer | None:
    """The folder of this name; ``None``: there is none, or files of it are missing."""
    path = folder() / name
    marker = _marker(path)
    if marker is None:
        return None
    try:
        whole = all(os.stat(path / file).st_size == size for file, size in marker.files.items())
    except OSError:
        return None
    return Layer(path, marker) if whole else None


def existing() -> list[tuple[Path, Layer | None]]:
    """All folders, those that are damaged or unfinished with ``None``."""
    try:
        entries = sorted(entry for entry in folder().iterdir() if entry.is_dir())
    except OSError:
        return []
    return [
        (entry, None if entry.name.startswith(_UNFINISHED) else complete(entry.name))
        for entry in entries
    ]


def is_absent(release: str) -> bool:
    """Whether no index had a release of a package within the last day."""
    try:
        return time.time() - os.stat(_absent(release)).st_mtime < _DAY
    except OSError:
        return False


def note_absent(release: str) -> None:
    """Remember that no index has a release, so that it is not looked for in every run."""
    with contextlib.suppress(OSError):
        _absent(release).touch()


def _absent(release: str) -> Path:
    return folder() / f"{_ABSENT}{release}-{suffix()}"


def make(ready: Callable[[], Layer | None], build: Callable[[Path], Built]) -> Layer:
    """Make a folder by ``build``, unless another memcalc has made it meanwhile: ``ready`` looks.

    Raises:
        EstimateError: the cache cannot be written, or what ``build`` raises.
    """
    with _alone():
        # No other memcalc is at work: what is unfinished was left behind.
        for entry in folder().glob(f"{_UNFINISHED}*"):
            shutil.rmtree(entry, ignore_errors=True)
        if (found := ready()) is not None:
            return found
        unfinished = folder() / f"{_UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            content = unfinished / "content"
            content.mkdir(parents=True)
            built = build(content)
            _seal(content, built)
            return _move(content, built.name)
        except OSError as error:
            raise EstimateError(f"Cannot write {folder()}: {reason(error)}.") from None
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            tell(Progress("", 1.0))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    place = folder()
    if os.pathsep in str(place):
        raise EstimateError(
            f"PYTHONPATH cannot hold {place}: set MEMCALC_CACHE to a folder without colons in its "
            "name."
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
        writable = os.access(place, os.W_OK)
    except OSError as error:
        raise EstimateError(
            f"Cannot make {place}: {reason(error)}; set MEMCALC_CACHE to a folder that can be "
            "written."
        ) from None
    if not writable:
        raise EstimateError(
            f"{place} cannot be written: set MEMCALC_CACHE to a folder that can be."
        )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held(place / "install"))
        except UsageError:
            tell(Progress("another memcalc is making an engine environment: waiting for it"))
            try:
                stack.enter_context(lock.held(place / "install", patience=_PATIENCE))
            except UsageError:
                raise EstimateError(
                    f"Another memcalc has held {place} for an hour: end it, or set MEMCALC_CACHE "
                    "to another folder."
                ) from None
        yield


def _marker(path: Path) -> Marker | None:
    try:
        return msgspec.json.decode((path / _MARKER).read_bytes(), type=Marker)
    except (OSError, ValueError):
        return None


def _seal(content: Path, built: Built) -> None:
    """Write the marker; a file's size that changes later is damage."""
    files: dict[str, int] = {}
    total = 0
    for place, _, names in os.walk(content):
        for name in names:
            path = os.path.join(place, name)
            size = os.stat(path).st_size
            total += size
            if size >= _LARGE or name in ("METADATA", "version.py"):
                files[os.path.relpath(path, content)] = size
    marker = Marker(files=files, bytes=total, notes=built.notes)
    (content / _MARKER).write_bytes(msgspec.json.encode(marker))


def _move(content: Path, name: str) -> Layer:
    final = folder() / name
    if os.path.lexists(final):
        # Damaged: a process that uses it keeps the files it has open.
        final.rename(content.parent / "damaged")
    content.rename(final)
    found = complete(name)
    if found is None:
        raise EstimateError(f"{final} changed while it was made: run the command again.")
    return found


def size_text(count: float) -> str:
    """``767 MB``, ``1.6 GB``: decimal, as indexes and disks count."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder; what cannot be read counts nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def require_room(folder: Path, needed: float, what: str) -> None:
    """Check that a folder's disk has room.

    Raises:
        EstimateError: it has not; the sentence has both figures.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise EstimateError(f"Cannot use {folder}: {reason(error)}.") from None
    if free < needed:
        raise EstimateError(
            f"{what} needs about {size_text(needed)} in {folder} while it is installed, and "
            f"{size_text(free)} are free: make room, or set MEMCALC_CACHE to a folder on a larger "
            "disk."
        )
