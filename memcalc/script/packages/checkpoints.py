"""Folders that ``save_pretrained`` fills: elsewhere, so that the script's own stay as they are.

Configs and indices are written to a folder of ours that ends with the run; weights are kept as any
checkpoint's are. Whoever loads from a folder that was saved to is led there.
"""

from __future__ import annotations

import functools
import os
import shutil
from typing import Any

from memcalc.children import scratch
from memcalc.script.patches import Patches


class SavedFolders:
    """Where a script believes it has saved models, and where they are."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._saved: dict[str, str] = {}

    def instead(self, folder: Any) -> str:
        """Where to save what shall go to a folder."""
        wanted = os.path.abspath(os.fspath(folder))
        if wanted not in self._saved:
            made = scratch.new()
            self._patches.also(functools.partial(shutil.rmtree, made, ignore_errors=True))
            self._saved[wanted] = made
        return self._saved[wanted]

    def found(self, name: Any) -> Any:
        """Where to load from: the same, if nothing was saved there."""
        if not isinstance(name, str | os.PathLike):
            return name
        wanted = os.path.abspath(os.fspath(name))
        for saved, made in self._saved.items():
            inside = os.path.relpath(wanted, saved)
            at = made if inside == "." else os.path.join(made, inside)
            if not inside.startswith(os.pardir) and os.path.exists(at):
                return at
        return name

    def read_by(self, owner: Any, name: str, place: int) -> None:
        """A function that loads looks where things were saved.

        Args:
            owner: of the function, such as a class.
            name: of the function.
            place: of the folder among its arguments.
        """

        def load(original: Any, *args: Any, **kwargs: Any) -> Any:
            led = [self.found(one) if at == place else one for at, one in enumerate(args)]
            named = {key: self.found(kwargs[key]) for key in _NAMES if key in kwargs}
            return original(*led, **{**kwargs, **named})

        self._patches.wrap(owner, name, load)


_NAMES = ("pretrained_model_name_or_path", "model_id")
"""What functions call the folder."""
