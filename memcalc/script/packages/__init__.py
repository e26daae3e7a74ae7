"""Packages that need more than PyTorch's own code: each file knows one of them.

Everything here acts when the package is imported, so a script pays for what it uses.
"""

from __future__ import annotations

from memcalc.kernels.target import Target
from memcalc.script.packages import bitsandbytes, deepspeed, transformers, triton
from memcalc.script.packages.checkpoints import SavedFolders
from memcalc.script.patches import Patches
from memcalc.script.phases import Phases
from memcalc.script.recorder import ScriptRecorder


def install(
    patches: Patches,
    recorder: ScriptRecorder,
    phases: Phases,
    target: Target,
    folders: SavedFolders,
) -> None:
    """Be there when the script imports one of them."""
    deepspeed.install(patches, recorder, phases)
    bitsandbytes.install(patches, recorder, target)
    triton.install(patches, recorder)
    transformers.install(patches, recorder, folders)
