"""Notes what a program reads of its machine, so that an answer holds while that stays the same.

Python tells an audit hook of files, folders, programs and hosts. Compiled readers of files do not:
so what the program's own files name is noted as well.
"""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from memcalc.script.places import OF_KERNEL, RUNTIME, SYSTEM

FILE = "opened"
"""The file that all processes of a program add to, in the folder that they share with memcalc."""
_LISTS = ("os.listdir", "os.scandir", "glob.glob")
_READS = ("open", "sqlite3.connect", "ctypes.dlopen")
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn")
_HOSTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "", None)
_OF_THE_MACHINE = ("uname", "ldconfig", "gcc", "cc", "g++", "c++", "clang", "ld", "objdump")
"""Programs that libraries start to look for compiled code."""
_NAMED = re.compile(rb"[\w./~-]{2,200}")
"""What may be a path in a text."""
_SMALL = 1 << 20
"""Bytes of the largest file that is looked through for paths: a script or a config."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The paths that the runs of a program read."""

    paths: frozenset[str] = frozenset()
    """Files and folders, absolute, without packages and the system's own."""
    unknown: str = ""
    """What it asked that may answer otherwise the next time; empty: nothing."""


def note_in(path: Path) -> None:
    """Install an audit hook that appends each path that this process reads to a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    seen: set[tuple[str, str]] = set()

    def add(kind: str, what: str) -> None:
        if (kind, what) not in seen:
            seen.add((kind, what))
            line = msgspec.json.encode((kind, what)) + b"\n"
            os.write(descriptor, line)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        try:
            if event in _READS or event in _LISTS:
                named = "." if args[0] is None and event in _LISTS else args[0]
                reads = event != "open" or (args[2] or 0) & os.O_ACCMODE != os.O_WRONLY
                if reads and isinstance(named, str | bytes | os.PathLike):
                    add("path", os.path.abspath(os.fsdecode(named)))
            elif event in _STARTS:
                program = os.fsdecode(args[0] if event != "os.spawn" else args[1]).split(" ")[0]
                if os.path.basename(program) not in _OF_THE_MACHINE:
                    add("unknown", f"it starts {program}")
            elif event in _HOSTS:
                host = args[0] if event != "socket.connect" else args[1]
                host = host[0] if isinstance(host, tuple) and host else host
                if host not in _HERE and not (event == "socket.connect" and _is_local(host)):
                    add("unknown", f"it asks {host!s}")
        except Exception as error:  # Whatever a program passes: its own call goes on.
            add("unknown", f"{event}: {type(error).__name__}")

    sys.addaudithook(hook)


def _is_local(address: object) -> bool:
    """Return True for the address of a Unix socket, which is a path."""
    return isinstance(address, bytes) or str(address).startswith(("/", "\0"))


def read(path: Path, known: Opened) -> Opened:
    """Return ``known`` with the paths noted in a run's file; ``unknown`` says if it is missing."""
    paths, unknown = set(known.paths), known.unknown
    try:
        lines = path.read_bytes().splitlines()
        noted = [msgspec.json.decode(line, type=tuple[str, str]) for line in lines]
    except (OSError, msgspec.DecodeError) as error:
        return Opened(paths=known.paths, unknown=known.unknown or f"nothing was noted: {error}")
    for kind, what in noted:
        if kind == "unknown":
            unknown = unknown or what
        else:
            paths.add(what)
    return Opened(paths=frozenset(paths), unknown=unknown)


def own_paths(opened: Iterable[str], folders: Iterable[Path], ignored: Path) -> set[str]:
    """Return the opened paths outside packages and system, and paths named in these files.

    ``folders``: where names in its files begin; ``ignored``: what memcalc itself writes.
    """
    systems = {*SYSTEM, *OF_KERNEL, RUNTIME, *sysconfig.get_paths().values()}
    packages = {*systems, str(ignored)} - {sys.prefix, "/"}
    packages |= {str(Path(__file__).resolve().parents[1]), os.path.join(sys.prefix, "lib")}
    roots = tuple(f"{one.rstrip('/')}/" for one in packages)
    found: set[str] = set()
    waiting = [_find_source(one) for one in opened]
    while waiting:
        path = waiting.pop()
        if path in found or f"{path}/".startswith(roots):
            continue
        found.add(path)
        for name in _find_names(path):
            places = (os.path.abspath(folder / os.path.expanduser(name)) for folder in folders)
            waiting += [place for place in places if place not in found and os.path.exists(place)]
    return found


def _find_source(path: str) -> str:
    """Return the path of a ``.pyc`` file's source; any other path as given."""
    folder, name = os.path.split(path)
    if os.path.basename(folder) != "__pycache__" or not name.endswith(".pyc"):
        return path
    return os.path.join(os.path.dirname(folder), f"{name.split('.')[0]}.py")


def _find_names(path: str) -> set[str]:
    """Return words of a small text file that may be paths: with a dot or a slash."""
    try:
        data = Path(path).read_bytes() if os.path.getsize(path) <= _SMALL else b""
    except OSError:
        return set()
    if b"\0" in data:
        return set()
    words = {
        os.fsdecode(word).strip(".") if word.startswith(b"...") else os.fsdecode(word)
        for word in _NAMED.findall(data)
    }
    return {word for word in words if ("/" in word or "." in word) and not word.startswith("//")}
