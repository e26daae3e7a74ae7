"""A mount namespace in which nothing that a script does changes the files that were there before.

Overlays of the kernel cover all folders: what the script and the processes that it starts write,
change or delete lies in a folder of layers, through whatever function they do it. The process that
asked carries new files out of the layers when the script has ended (``new_files``).
"""

import contextlib
import ctypes
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_MOUNT_SETATTR, _READ_ONLY = 442, 1
"""A system call, with its number on all machines, and its flag (linux/mount.h)."""
_CAPABILITIES = 0x20080522
"""The version of the kernel's structure of capabilities (linux/capability.h)."""
_NO_FILES = re.compile(
    "autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|efivarfs|fusectl|hugetlbfs|"
    "mqueue|nsfs|proc|pstore|rpc_pipefs|securityfs|sysfs|tracefs"
)
"""File systems of the kernel, which hold no files of a user."""
_OF_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr")
"""Folders that users cannot write to (Filesystem Hierarchy Standard 3.0)."""
_DEPTH, _MANY = 2, 1000
"""Folders below a mount, and entries of each, among which a user's own are looked for."""
_RECORD = "namespace.json"
_INSIDE = "MEMCALC_NAMESPACE"
"""Variable that tells a process that it is in a namespace; a user's 0: there shall be none."""
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace(msgspec.Struct, frozen=True):
    """What became of a script's namespace."""

    refused: str = ""
    """Why there is none; empty: there is one."""
    layers: tuple[tuple[str, str], ...] = ()
    """Covered folders, each with the folder of what was written there."""
    in_memory: bool = False
    """What was written there is gone with the script."""
    read_only: tuple[str, ...] = ()
    """Places that no overlay could cover, and that nobody can write to."""


def enter(shared: Path, layers: Path) -> Namespace:
    """Move this process into a namespace, before it has threads, and write down how that went.

    A script that a simulated script simulates is in one already.

    Args:
        shared: a folder that stays as it is outside; the record is written there.
        layers: a folder for the layers.
    """
    found, wanted = Namespace(), os.environ.get(_INSIDE, "")
    if wanted == "0":
        found = Namespace(refused=f"{_INSIDE}=0")
    elif not wanted:
        try:
            found = _cover_all(shared, layers)
            os.environ[_INSIDE] = "1"
        except OSError as error:
            found = Namespace(refused=error.strerror or str(error))
    (shared / _RECORD).write_bytes(msgspec.json.encode(found))
    return found


def read(shared: Path) -> Namespace | None:
    """Return what ``enter`` wrote down; ``None``: the process ended before it did."""
    try:
        return msgspec.json.decode((shared / _RECORD).read_bytes(), type=Namespace)
    except OSError:
        return None


def _cover_all(shared: Path, layers: Path) -> Namespace:
    has_other_users = _unshare()
    try:
        _mount("none", "/", "", _RECURSIVE | _PRIVATE)
        folder, outside = os.getcwd(), os.open(shared, os.O_PATH)
        in_memory = _prepare(layers)
        covered, read_only = _cover(list(_places(has_other_users)), layers)
        _mount(f"/proc/self/fd/{outside}", str(shared), "", _BIND)
        os.close(outside)
        os.chdir(folder)
    finally:
        if os.geteuid():
            _drop_capabilities()
    return Namespace(layers=tuple(covered), in_memory=in_memory, read_only=tuple(read_only))


def _prepare(layers: Path) -> bool:
    """Make the folder of layers; returns whether it lies in main memory.

    Raises:
        OSError: this kernel lets nobody here mount overlays.
    """
    layers.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        _try_overlay(layers)
        return False
    # The file system of the folder takes none.
    _mount("layers", str(layers), "tmpfs")
    _try_overlay(layers)
    return True


def _cover(places: list[str], layers: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Cover places by overlays, or else make them read-only; returns both."""
    covered: list[tuple[str, str]] = []
    read_only = []
    # Not by their paths, which the first overlays hide.
    inside = os.open(layers, os.O_PATH)
    hidden = {
        place: os.open(place, os.O_PATH)
        for place in places
        if _inside(place, (other for other in places if other != place))
    }
    for place in places:
        layer = layers / str(len(covered))
        lower = f"/proc/self/fd/{hidden[place]}" if place in hidden else place
        try:
            _overlay(lower, place, f"/proc/self/fd/{inside}/{layer.name}")
            covered.append((place, str(layer / "upper")))
        except OSError:
            _bind_read_only(place)
            read_only.append(place)
    for number in (inside, *hidden.values()):
        os.close(number)
    return covered, read_only


def _unshare() -> bool:
    """Leave the mounts of this machine; returns whether that took a namespace of users as well."""
    if _libc.unshare(_NEW_MOUNTS) == 0:
        return False
    user, group = os.geteuid(), os.getegid()
    _call(_libc.unshare(_NEW_USER | _NEW_MOUNTS))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)
    return True


def _places(has_other_users: bool) -> Iterator[str]:
    """Yield the largest folders without mounts inside, and files that lie beside mounts."""
    mounts = _mounts()
    for point in sorted(mounts):
        if mounts[point] and os.path.exists(point):
            for part in _parts(point, list(mounts)):
                yield part
                if has_other_users and not _inside(part, _OF_SYSTEM):
                    yield from _own_parts(part, list(mounts))


def _own_parts(part: str, mounts: list[str]) -> list[str]:
    """Return folders inside that this user can write to, below folders that others own.

    The kernel copies folders on the way to what is written, and users cannot make a folder that
    others own: an overlay must begin below it.
    """
    user, found = os.geteuid(), [part]
    waiting = [(part, _DEPTH)]
    while waiting:
        folder, depth = waiting.pop()
        for entry in _folders(folder):
            if entry.path in mounts or entry.is_symlink() or not entry.is_dir():
                continue
            is_own = entry.stat().st_uid == user
            if folder not in found if is_own else os.access(entry.path, os.W_OK):
                found.append(entry.path)
            if depth and not is_own:
                waiting.append((entry.path, depth - 1))
    return found[1:]


def _folders(folder: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = list(itertools.islice(entries, _MANY))
        return found if len(found) < _MANY else []
    return []


def _mounts() -> dict[str, bool]:
    """Return where file systems are mounted, and whether each can hold a user's files."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, system = line.partition(" - ")
        point, options = fields.split()[4:6]
        kind, _, of_system = system.split(" ", 2)
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), point)
        of_kernel = _NO_FILES.fullmatch(kind) or _inside(point, ("/proc", "/sys", "/dev"))
        runtime = kind == "tmpfs" and _inside(point, ("/run",))
        is_read_only = "ro" in options.split(",") or "ro" in of_system.split(",")
        found[point] = not (of_kernel or runtime or is_read_only)
    return found


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _parts(folder: str, mounts: list[str]) -> Iterator[str]:
    """Yield the parts of a folder that hold no mounts; without mounts that is the folder."""
    if not any(point != folder and _inside(point, [folder]) for point in mounts):
        yield folder
        return
    try:
        entries = list(os.scandir(folder))
    except PermissionError:
        return
    for entry in entries:
        if entry.path in mounts:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _parts(entry.path, mounts)
        elif entry.is_file(follow_symlinks=False) and (
            os.access(entry.path, os.W_OK) or os.access(folder, os.W_OK)
        ):
            yield entry.path


# ---- system calls


def _try_overlay(layers: Path) -> None:
    """Cover an empty folder by an overlay, to see that this works here."""
    (layers / "empty").mkdir(exist_ok=True)
    _overlay(str(layers / "empty"), str(layers / "empty"), str(layers / "tried"))
    _call(_libc.umount2(os.fsencode(layers / "empty"), 0))


def _overlay(folder: str, at: str, layer: str) -> None:
    """Cover a folder; what is written to it from then on lies in a layer."""
    upper, work = f"{layer}/upper", f"{layer}/work"
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


def _bind_read_only(place: str) -> None:
    _mount(place, place, "", _BIND)
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    path = os.fsencode(place)
    size = ctypes.sizeof(attributes)
    _call(_libc.syscall(_MOUNT_SETATTR, -100, path, 0, attributes, size))


def _mount(source: str, at: str, kind: str, flags: int = 0, options: str = "") -> None:
    told = (os.fsencode(one) for one in (source, at, kind))
    _call(_libc.mount(*told, ctypes.c_ulong(flags), os.fsencode(options)))


def _drop_capabilities() -> None:
    """Give up what a namespace of one's own grants: a script has the rights that its user has."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    _libc.capset(header, (ctypes.c_uint32 * 6)())


def _call(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
