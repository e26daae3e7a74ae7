"""Support for packages beyond PyTorch, one file each.

Everything here acts when the package is imported, so a script pays for what it uses.
"""

from __future__ import annotations

from memcalc.engine.patches import Patches
from memcalc.engine.scripts.session import Session
from memcalc.script.packages import accelerate, deepspeed, diffusers, transformers
from memcalc.script.packages.checkpoints import SavedFolders


def install(patches: Patches, session: Session, folders: SavedFolders, *, weights: bool) -> None:
    """Be there when the script imports one of them.

    Args:
        patches: what is changed.
        session: follows the script.
        folders: where models are saved.
        weights: are fetched where they are not on this machine.
    """
    accelerate.install(patches)
    deepspeed.install(patches, session)
    if not weights:
        transformers.install(patches, session.say, folders)
        diffusers.install(patches, session.say)
