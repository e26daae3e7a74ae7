"""Redirects ``save_pretrained``, so that the script's folders stay unchanged.

Configs and indices are written to a folder of ours that ends with the run; weights are kept as any
checkpoint's are. Whoever loads from a folder that was saved to is led there: code that is not
Python would not find it.
"""

from __future__ import annotations

import os
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.script.overlay import Overlay, full

NOT_HERE = (
    "weights of {} are not on this machine: their shapes are those of its config (--weights "
    "downloads them)"
)
"""What is assumed of a checkpoint that is not fetched."""


class SavedFolders:
    """Where a script believes it has saved models, and where they are."""

    def __init__(self, patches: Patches, overlay: Overlay) -> None:
        self._patches = patches
        self._overlay = overlay

    def instead(self, folder: Any) -> str:
        """Where to save what shall go to a folder."""
        return self._overlay.folder(os.path.abspath(os.fspath(folder)))

    def found(self, name: Any) -> Any:
        """Where to load from: the same, if nothing was saved there."""
        wanted = full(name)
        at = self._overlay.where(wanted) if wanted is not None else None
        if wanted is None or at is None or at == wanted:
            return name
        # What lies in the folder itself is found beside what was saved.
        for file in self._overlay.names(wanted) if os.path.isdir(at) else ():
            lies, beside = os.path.join(wanted, file), os.path.join(at, file)
            if os.path.lexists(beside) or not os.path.isfile(lies):
                continue
            if os.path.getsize(lies) > _COPIED:
                # Weights, which nobody writes into.
                self._overlay.borrow(lies, lies)
            else:
                self._overlay.copy(lies, lies)
        return at

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
            loaded = original(*led, **{**kwargs, **named})
            pairs = (*zip(led, args, strict=True), *((named[key], kwargs[key]) for key in named))
            _rename(loaded, {at: str(wanted) for at, wanted in pairs if at is not wanted})
            return loaded

        self._patches.wrap(owner, name, load)


def _rename(loaded: Any, names: dict[Any, str]) -> None:
    """What was loaded from a folder of ours is called by the name that the script knows."""
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    for one in (model, getattr(model, "config", None)):
        name = getattr(one, "name_or_path", None)
        if one is not None and isinstance(name, str) and name in names:
            one.name_or_path = names[name]


_COPIED = 1 << 24
"""Bytes up to which a file is copied: configs and tokenizers, which may be written again."""
_NAMES = ("pretrained_model_name_or_path", "model_id")
"""What functions call the folder."""
