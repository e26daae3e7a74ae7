"""What of the user's stays as it is over both back-ends: checkpoints, folders and trackers."""

from __future__ import annotations

from collections.abc import Callable

from memcalc.script import place, saving, trackers
from memcalc.script.packages import peft, saved_models
from memcalc.script.packages.checkpoints import SavedFolders
from memcalc.script.patches import Patches

STAY = "files that were there before stay as they were"


def install(
    patches: Patches, say: Callable[[str], None], *, simulated: bool = True
) -> SavedFolders:
    """Write nothing that outlives the run.

    Args:
        patches: what is changed.
        say: told what was not done.
        simulated: the GPU is; else PyTorch's own code loads what lies on the disk.

    Returns:
        Where models were saved instead.
    """
    files = saving.install(patches, say, simulated=simulated)
    files.overlay.covers = lambda: say(place.named(STAY))
    trackers.install(patches, say)
    folders = SavedFolders(patches, files.overlay)
    saved_models.install(patches, say, folders)
    peft.install(patches, say, folders)
    return folders
