"""What of the user's stays as it is while it runs: checkpoints, folders and trackers."""

from __future__ import annotations

from collections.abc import Callable

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.script import saving, trackers
from memcalc.script.packages import peft, saved_models
from memcalc.script.packages.checkpoints import SavedFolders

STAY = "files that were there before stay as they were"


def install(patches: Patches, say: Callable[[str], None]) -> SavedFolders:
    """Write nothing that outlives the run.

    Args:
        patches: what is changed.
        say: told what was not done.

    Returns:
        Where models were saved instead.
    """
    files = saving.install(patches, say)
    files.overlay.covers = lambda: say(source_lines.named(STAY))
    trackers.install(patches, say)
    folders = SavedFolders(patches, files.overlay)
    saved_models.install(patches, say, folders)
    peft.install(patches, say, folders)
    return folders
