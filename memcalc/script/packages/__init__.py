"""Packages that need more than PyTorch's own code: each file knows one of them.

Everything here acts when the package is imported, so a script pays for what it uses.
"""

from __future__ import annotations

from memcalc.kernels.target import Target
from memcalc.script.packages import (
    accelerate,
    bitsandbytes,
    deepspeed,
    diffusers,
    flash_attn,
    transformers,
    triton,
)
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
    *,
    flash: bool,
) -> None:
    """Be there when the script imports one of them.

    Args:
        patches: what is changed.
        recorder: the session's.
        phases: the session's.
        target: the GPU.
        folders: where models are saved.
        flash: flash-attn is taken to be installed.
    """
    accelerate.install(patches)
    deepspeed.install(patches, recorder, phases)
    bitsandbytes.install(patches, recorder, target)
    triton.install(patches, recorder)
    flash_attn.install(patches, recorder, target, there=flash)
    transformers.install(patches, recorder, folders)
    diffusers.install(patches, recorder)
