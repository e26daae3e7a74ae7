"""Files that a simulated run pretends to write, so that its script finds them again.

In place of a checkpoint lies a file with a mark, as long as the checkpoint would be, where the
script does not see it (``Overlay``); what was saved is kept by the mark's number.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.script import file_functions
from memcalc.script.overlay import Overlay, full

_MARK = b"saved in a simulated run, number %08d"
_open = open
_LONG = len(_MARK % 0)
NOT_WRITTEN = "checkpoints are not written"
"""What an answer says of all that is saved."""


class UnwrittenFiles:
    """What a script has saved, by the mark that it finds in place of it."""

    def __init__(self) -> None:
        self.overlay = Overlay()
        self._kept: dict[int, Any] = {}
        self._next = 0
        self._named: set[int] = set()
        """What was saved under a name, and is forgotten when no file has its mark any more."""

    def install(self, patches: Patches) -> None:
        """Let the script find its files by the functions of ``os`` and ``shutil``."""
        patches.also(lambda: self.overlay.close(lambda path: _number(path) is not None))
        file_functions.install(patches, self.overlay)
        patches.wrap(shutil, "copyfile", self._copy)

    def put(self, file: Any, content: Any, size: int = 0) -> None:
        """Keep what was saved.

        Args:
            file: where it was saved: a path, or something open.
            content: what was saved.
            size: bytes that the file would have.
        """
        with self.overlay.lock:
            self._put(file, content, size)

    def _put(self, file: Any, content: Any, size: int) -> None:
        number, self._next = self._next, self._next + 1
        self._kept[number] = content
        path, overlay = full(file), self.overlay
        if path is not None:
            self._forget_what_is_gone()
            self._mark(path, number, size)
            self._named.add(number)
            return
        beside = full(getattr(file, "name", None))
        if beside is not None and overlay.where(beside) == beside:
            if overlay.was_there(beside):
                # Opened to be changed in place, and too large to have been copied.
                return
            overlay.of_checkpoints.add(os.path.dirname(beside))
            overlay.made.add(beside)
        file.write(_MARK % number)

    def get(self, file: Any, missing: Any = None) -> Any:
        """What was saved there; ``missing`` if nothing was."""
        path = full(file)
        at = self.overlay.where(path) if path is not None else None
        number = _marked(file) if path is None else _number(at) if at is not None else None
        return missing if number is None else self._kept.get(number, missing)

    def _mark(self, path: str, number: int, size: int) -> None:
        if not self.overlay.is_own(path):
            self.overlay.of_checkpoints.add(os.path.dirname(path))
        with _open(self.overlay.covering(self.overlay.resolved(path)), "wb") as opened:
            opened.write(_MARK % number)
            # It takes no room: nothing is written after the mark.
            with contextlib.suppress(OSError):
                opened.truncate(max(size, _LONG))

    def _copy(self, original: Any, source: Any, target: Any, **kwargs: Any) -> Any:
        here, there = full(source), full(target)
        at = self.overlay.where(here) if here is not None else None
        number = _number(at) if at is not None and there is not None else None
        if number is None or there is None or at is None:
            return original(source, target, **kwargs)
        with self.overlay.lock:
            self._mark(there, number, os.stat(at).st_size)
        return target

    def _forget_what_is_gone(self) -> None:
        mirrored = os.walk(self.overlay.mirror)
        found = {_number(os.path.join(at, name)) for at, _, names in mirrored for name in names}
        gone = self._named - found
        self._named -= gone
        for number in gone:
            del self._kept[number]


def _marked(file: Any) -> int | None:
    """The number of the mark that comes next in an open file."""
    try:
        at = file.tell()
        head = file.read(_LONG)
        file.seek(at)
    except (AttributeError, OSError, ValueError):
        return None
    before, _, number = bytes(head).rpartition(b" ") if isinstance(head, bytes) else (b"", b"", b"")
    return int(number) if before and before == _MARK.rpartition(b" ")[0] else None


def _number(path: str) -> int | None:
    """The number of the mark that a file begins with."""
    try:
        with _open(path, "rb") as opened:
            return _marked(opened)
    except OSError:
        return None
