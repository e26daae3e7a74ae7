"""A mount namespace in which nothing that a script does changes the files that were there before.

Overlays of the kernel cover all folders: what the script and the processes that it starts write,
change or delete lies in a folder of layers, by any function. The process that
asked carries new files out of the layers when the script has ended (``new_files``).
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from memcalc.script.failure import read_file
from memcalc.script.places import find_places

_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_DETACH = 2
_MOUNT_SETATTR, _READ_ONLY = 442, 1
"""A system call, with its number on all machines, and its flag (linux/mount.h)."""
_CAPABILITIES = 0x20080522
"""The version of the kernel's structure of capabilities (linux/capability.h)."""
_RECORD, _LAYERS, _UPPER = "namespace.json", "layers", "upper"
_INSIDE = "MEMCALC_NAMESPACE"
"""Variable that names the namespace that a process is in, which no other process can enter."""
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace(msgspec.Struct, frozen=True):
    """The namespace of a script, or why it has none."""

    refused: str = ""
    """Why there is none; empty: there is one."""
    covered: tuple[str, ...] = ()
    """Covered folders; what was written there is told by ``layer``."""
    in_memory: bool = False
    """What was written there is gone with the script."""
    read_only: tuple[str, ...] = ()
    """Places that no overlay could cover, and that nobody can write to."""


def enter(shared: Path) -> Namespace:
    """Move this process into a mount namespace with overlays over all files; record the outcome.

    A script that a simulated script simulates is in one already.

    ``shared``: a folder that is not covered, for the record; the layers lie next to it.
    """
    found = Namespace()
    if not is_inside():
        try:
            found = _cover_all(shared)
            os.environ[_INSIDE] = _mount_namespace_id()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            found = Namespace(refused=f"{where}{error.strerror or error}")
    (shared / _RECORD).write_bytes(msgspec.json.encode(found))
    return found


def layer(shared: Path, number: int) -> Path:
    """Return the overlay's upper folder, with what was written to this covered folder."""
    return shared.with_name(_LAYERS) / str(number) / _UPPER


def is_inside() -> bool:
    """Return True if this process is in a namespace in which files are protected."""
    return os.environ.get(_INSIDE) == _mount_namespace_id()


def _mount_namespace_id() -> str:
    """Return the identifier of this process's mount namespace; empty where there is no /proc."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/mnt")
    return ""


def read(shared: Path) -> Namespace | None:
    """Return the record that ``enter`` wrote, or None if the process ended before it."""
    try:
        return msgspec.json.decode(read_file(shared / _RECORD), type=Namespace)
    except msgspec.DecodeError:
        return None


def _cover_all(shared: Path) -> Namespace:
    """Enter a new mount namespace, and mount overlays over all folders with files."""
    layers = shared.with_name(_LAYERS)
    is_alone = _libc.unshare(_NEW_MOUNTS) == 0
    places = find_places(has_users=not is_alone)
    if not is_alone:
        _unshare_users()
    folder, mounted = os.getcwd(), list[str]()
    try:
        _mount("none", "/", "", _RECURSIVE | _PRIVATE)
        in_memory = _make_layers_folder(layers)
        with _opened([str(shared), str(layers), *places]) as opened:
            covered, read_only = _cover(places, opened, str(layers), mounted)
            _mount(opened[str(shared)], str(shared), "", _BIND)
    except OSError:
        for path in reversed(mounted):
            _raise_if_failed(_libc.umount2(os.fsencode(path), _DETACH))
        raise
    finally:
        os.chdir(folder)
        if os.geteuid():
            _drop_capabilities()
    return Namespace(covered=tuple(covered), in_memory=in_memory, read_only=tuple(read_only))


def _make_layers_folder(layers: Path) -> bool:
    """Make the folder for overlay layers; return True if it lies in main memory.

    Raises:
        OSError: this kernel refuses overlays.
    """
    layers.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        _try_overlay(layers)
        return False
    # The file system of the folder takes none.
    _mount("layers", str(layers), "tmpfs")
    _try_overlay(layers)
    return True


@contextlib.contextmanager
def _opened(paths: list[str]) -> Iterator[dict[str, str]]:
    """Yield paths that lead to these files and folders also when mounts hide them."""
    numbers = list[int]()
    try:
        for path in paths:
            numbers.append(os.open(path, os.O_PATH))
        yield {path: f"/proc/self/fd/{one}" for path, one in zip(paths, numbers, strict=True)}
    finally:
        for one in numbers:
            os.close(one)


def _cover(
    places: dict[str, bool], opened: dict[str, str], layers: str, mounted: list[str]
) -> tuple[list[str], list[str]]:
    """Mount an overlay over each place, or make it read-only; return the places of both kinds.

    ``mounted``: gets each path with a mount, also where this fails.
    """
    covered, read_only = list[str](), list[str]()
    for path, holds_files in places.items():
        if holds_files:
            with contextlib.suppress(OSError):
                _overlay(opened[path], path, f"{opened[layers]}/{len(covered)}")
                covered.append(path)
                mounted.append(path)
                continue
        _mount(opened[path], path, "", _BIND)
        mounted.append(path)
        if holds_files:
            _make_read_only(path)
            read_only.append(path)
    return covered, read_only


def _unshare_users() -> None:
    """Enter a new user and mount namespace that maps this user and group alone."""
    user, group = os.geteuid(), os.getegid()
    _raise_if_failed(_libc.unshare(_NEW_USER | _NEW_MOUNTS))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)


# ---- system calls


def _try_overlay(layers: Path) -> None:
    """Mount and unmount an overlay over an empty folder; raise OSError if refused."""
    (layers / "empty").mkdir(exist_ok=True)
    _overlay(str(layers / "empty"), str(layers / "empty"), str(layers / "tried"))
    _raise_if_failed(_libc.umount2(os.fsencode(layers / "empty"), 0))


def _overlay(folder: str, at: str, layer: str) -> None:
    """Mount an overlay over a folder: new and changed files go to ``layer``."""
    upper, work = f"{layer}/{_UPPER}", f"{layer}/work"
    status = os.stat(folder)
    lower = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        os.makedirs(upper)
        os.mkdir(work)
        os.chmod(upper, status.st_mode & 0o7777)
        options = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work},userxattr"
        _mount("overlay", at, "overlay", 0, options)
    finally:
        os.close(lower)


def _make_read_only(place: str) -> None:
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    path = os.fsencode(place)
    size = ctypes.sizeof(attributes)
    _raise_if_failed(_libc.syscall(_MOUNT_SETATTR, -100, path, 0, attributes, size))


def _mount(source: str, at: str, kind: str, flags: int = 0, options: str = "") -> None:
    told = (os.fsencode(one) for one in (source, at, kind))
    _raise_if_failed(_libc.mount(*told, ctypes.c_ulong(flags), os.fsencode(options)))


def _drop_capabilities() -> None:
    """Drop the capabilities that a user namespace grants this process."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    _libc.capset(header, (ctypes.c_uint32 * 6)())


def _raise_if_failed(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
