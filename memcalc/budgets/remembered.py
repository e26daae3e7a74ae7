"""Answers of commands, kept as long as all that they depend on is unchanged.

They depend on the command and its folder, memcalc, every package, the environment's variables, and
the files and folders that the program read. What asked a host or started a program is not kept.
"""

import hashlib
import os
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec

from memcalc.budgets.records import Evidence
from memcalc.files import cache
from memcalc.records.plan import Plan
from memcalc.script import opened
from memcalc.script.opened import Opened

_OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM", "WINDOWID", "LS_COLORS")
_SESSIONS = ("SSH_", "XDG_", "DBUS_", "TMUX", "VSCODE_", "GITHUB_", "RUNNER_")
"""How the names of variables begin that tell who asks, and not what."""
_WHOLE = 64 << 20
"""Bytes of the largest file whose contents are compared: of larger ones size and time are."""


class _Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A command's cached figures, and the state of each file that they depend on."""

    evidence: Evidence
    states: dict[str, str]


def recall(key: str | None) -> Evidence | None:
    """Return the cached figures of a command, or None if a file it depends on has changed."""
    found = cache.load(key, _Remembered) if key is not None else None
    if found is None or found.states != _read_states(found.states):
        return None
    return found.evidence


def remember(
    key: str | None, plan: Plan, folder: Path, evidence: Evidence, noted: Opened, began: float
) -> None:
    """Cache the figures of a command with the state of all files that it opened.

    ``began``: the time before the run; what changed since then may have been read before or after.
    """
    if key is None or noted.unknown:
        return
    words = {
        str(folder / word) for word in (plan.command or "").split() if (folder / word).exists()
    }
    beside = {str(folder), *(str(Path(word).parent) for word in words)}
    paths = opened.own_paths({*noted.paths, *words}, [Path(one) for one in beside], cache.folder())
    files = filter(os.path.isfile, paths)
    if all(os.stat(path).st_mtime < began for path in files):
        states = _read_states({*paths, *beside})
        cache.store(key, _Remembered(evidence=evidence, states=states))


def find_key(plan: Plan, folder: Path) -> str | None:
    """Return the cache key of a command, or None if it runs in another Python environment.

    It reads the names and versions of all packages, so ask once for each command.
    """
    if plan.python not in (None, sys.executable):
        return None
    packages = sorted((one.metadata["Name"], one.version) for one in metadata.distributions())
    shown = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_SHELLS and not name.startswith(_SESSIONS)
    }
    found = {"folder": str(folder), "packages": packages, "variables": shown}
    return cache.key(plan, found, "checked")


def _read_states(paths: Iterable[str]) -> dict[str, str]:
    return {path: _read_state(path) for path in paths}


def _read_state(path: str) -> str:
    """Return a digest of a file's contents or of a folder's names, or an error's name."""
    try:
        if os.path.isdir(path):
            shown = sorted(name for name in os.listdir(path) if not name.startswith((".", "__py")))
            return hashlib.sha256("\n".join(shown).encode(errors="replace")).hexdigest()
        status = os.stat(path)
        if status.st_size > _WHOLE:
            return f"{status.st_size} {status.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return type(error).__name__
