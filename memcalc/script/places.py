"""The folders of this machine that overlays are to cover, so that all files lie below one."""

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_NO_FILES = re.compile(
    "autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|efivarfs|fusectl|hugetlbfs|"
    "mqueue|nsfs|proc|pstore|rpc_pipefs|securityfs|sysfs|tracefs"
)
"""File systems of the kernel, which hold no files of a user."""
SYSTEM = (
    *("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin", "/usr/share"),
)
"""Folders of the system's own files (Filesystem Hierarchy Standard 3.0)."""
OF_KERNEL, RUNTIME = ("/proc", "/sys", "/dev"), "/run"
"""Folders that the kernel fills, and the one of what the system has running."""
_DEPTH, _MANY = 2, 1000
"""Folders below a mount, and entries of each, among which a user's own are looked for."""


def find_places(*, has_users: bool) -> dict[str, bool]:
    """Return folders to cover by overlays, and mounts that these would hide; parents first.

    ``has_users``: the namespace has its own users. They can cover no folder in which others have
    mounted something, and can copy no folder that others own.

    Returns:
        By path whether a user's files are there, which an overlay must cover.

    Raises:
        OSError: this user writes to a folder that cannot be covered.
    """
    mounts, found = _read_mounts(), dict[str, bool]()
    for point in sorted(mounts):
        if not mounts[point]:
            if _is_inside(point, found):
                found[point] = False
            continue
        parts = [point]
        if has_users:
            parts = list(_split_at_mounts(point, list(mounts)))
        elif point == "/":
            parts = list(_list_paths("/", list(mounts)))
        for part in parts:
            found[part] = True
            if has_users and not _is_inside(part, SYSTEM):
                found |= dict.fromkeys(_find_own_folders(part, list(mounts)), True)
    return found


def _read_mounts() -> dict[str, bool]:
    """Return each mount point, and whether it can hold a user's files."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, system = line.partition(" - ")
        point, options = fields.split()[4:6]
        kind, _, of_system = system.split(" ", 2)
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), point)
        if not os.path.exists(point):
            continue
        of_kernel = _NO_FILES.fullmatch(kind) or _is_inside(point, OF_KERNEL)
        runtime = kind == "tmpfs" and _is_inside(point, (RUNTIME,))
        is_read_only = "ro" in options.split(",") or "ro" in of_system.split(",")
        found[point] = not (of_kernel or runtime or is_read_only)
    return found


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _list_paths(folder: str, mounts: list[str]) -> Iterator[str]:
    """Yield the files and folders directly in a folder, without mount points and links."""
    with os.scandir(folder) as entries:
        for entry in entries:
            is_plain = entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
            if is_plain and entry.path not in mounts:
                yield entry.path


def _split_at_mounts(folder: str, mounts: list[str]) -> Iterator[str]:
    """Yield the paths in a folder that hold no mount point: the folder itself if it has none.

    Raises:
        OSError: this user can write to a folder with mounts.
    """
    if not any(point != folder and _is_inside(point, [folder]) for point in mounts):
        yield folder
        return
    if os.access(folder, os.W_OK) and folder != "/":
        raise OSError(errno.EBUSY, f"something is mounted in {folder}")
    with contextlib.suppress(PermissionError):
        for path in _list_paths(folder, mounts):
            if os.path.isdir(path):
                yield from _split_at_mounts(path, mounts)
            elif os.access(path, os.W_OK):
                yield path


def _find_own_folders(part: str, mounts: list[str]) -> list[str]:
    """Return folders inside that this user can write to, below folders of other users.

    The kernel copies folders on the way to what is written, and users cannot make a folder that
    others own: an overlay must begin below it.
    """
    user, found = os.geteuid(), [part]
    waiting = [(part, _DEPTH)]
    while waiting:
        folder, depth = waiting.pop()
        for entry in _list_entries(folder):
            if entry.path in mounts or not entry.is_dir(follow_symlinks=False):
                continue
            is_own = entry.stat().st_uid == user
            if folder not in found if is_own else os.access(entry.path, os.W_OK):
                found.append(entry.path)
            if depth and not is_own:
                waiting.append((entry.path, depth - 1))
    return found[1:]


def _list_entries(folder: str) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = list(itertools.islice(entries, _MANY))
        return found if len(found) < _MANY else []
    return []
