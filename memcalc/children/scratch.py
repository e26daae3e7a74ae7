"""A folder for what a child writes; the process that forked it removes it, however it ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile

_given: list[str] = []
"""In a child: the folder that its parent removes. It is made when something is first put there."""


def name() -> str:
    """What a child's folder will be called; empty where there is no place for it."""
    try:
        return os.path.join(tempfile.gettempdir(), f"memcalc-{secrets.token_hex(8)}")
    except OSError:
        return ""


def use(folder: str) -> None:
    """In a child: write there from now on."""
    _given[:] = [folder] if folder else []


def new() -> str:
    """A new folder; one outside of such a child is its maker's to remove."""
    inside = None
    if _given:
        with contextlib.suppress(OSError):
            os.makedirs(_given[0], mode=0o700, exist_ok=True)
            inside = _given[0]
    return tempfile.mkdtemp(prefix="memcalc-", dir=inside)


def remove(folder: str) -> None:
    """In the parent: the child has ended."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
