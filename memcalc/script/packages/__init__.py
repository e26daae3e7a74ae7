"""Packages that need more than PyTorch's own code: each file knows one of them.

Everything here acts when the package is imported, so a script pays for what it uses.
"""

from __future__ import annotations

from memcalc.script.packages import bitsandbytes, transformers, triton
from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder


def install(patches: Patches, recorder: ScriptRecorder) -> None:
    """Be there when the script imports one of them."""
    for package in (bitsandbytes, transformers, triton):
        package.install(patches, recorder)
