"""Configures the cuDNN shim, which is loaded with the stub driver, and reports its use.

The shim loads the real library when the program first needs it.
"""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

from memcalc.engine.cudnn import library
from memcalc.engine.cudnn.library import Library, Missing

_ASSUMED = "MEMCALC_CUDNN_ASSUMED"
"""Variable with the assumption of an estimate if the library is used."""
_VERSION = "MEMCALC_STUB_CUDNN"
"""Variable with the version that PyTorch sees; not set if unknown."""

BENCHMARK = (
    "torch.backends.cudnn.benchmark is on: a GPU would choose the fastest engine; here cuDNN's "
    "first choice is used, after PyTorch tried all of them"
)


def environment(found: Library | Missing) -> dict[str, str]:
    """Return the variables of the shim and the stub driver; set them before CUDA is first used.

    The version must be set before PyTorch is imported. The library may be set later, in a fork: it
    is read when cuDNN is first needed.
    """
    named = {_VERSION: str(_version_number(found.reported))} if found.reported else {}
    if isinstance(found, Missing):
        return {**named, "MEMCALC_CUDNN": "", "MEMCALC_CUDNN_COMMAND": "", _ASSUMED: ""}
    line = library.command(found.requirement) if not found.folder else ""
    library_at = {"MEMCALC_CUDNN": found.folder, "MEMCALC_CUDNN_COMMAND": line}
    return {**named, **library_at, _ASSUMED: found.assumption}


def switch_off() -> None:
    """Turn cuDNN off in PyTorch for good; call it before the program runs."""
    import torch

    backends: Any = torch.backends
    backends.cudnn.enabled = False
    # The program must not turn it on again.
    torch._C._set_cudnn_enabled = lambda _: None  # type: ignore[assignment]
    type(backends.cudnn).enabled = property(lambda _: False, lambda *_: None)
    # Attention has a separate switch since PyTorch 2.5.
    if hasattr(backends.cuda, "enable_cudnn_sdp"):
        backends.cuda.enable_cudnn_sdp(False)
    if _VERSION not in os.environ:
        version = _version_number(torch._C._cudnn.getCompileVersion())
        backends.cudnn._init = lambda: True
        backends.cudnn.version = lambda: version


def has_library() -> bool:
    """Return True if this process has a cuDNN that plans, present or to be fetched."""
    return bool(os.environ.get("MEMCALC_CUDNN") or os.environ.get("MEMCALC_CUDNN_COMMAND"))


def is_used() -> bool:
    """Return True if the program needed cuDNN and the library was loaded."""
    loaded = getattr(ctypes.CDLL(None), "memcalc_cudnn_loaded", None)
    return loaded is not None and bool(loaded())


def assumptions() -> tuple[str, ...]:
    """Return the assumptions about cuDNN after the program ran in this process."""
    import torch

    if not is_used():
        return ()
    tried = BENCHMARK if torch.backends.cudnn.benchmark else ""
    return tuple(text for text in (os.environ.get(_ASSUMED), tried) if text)


def _version_number(version: Sequence[int]) -> int:
    """Return a cuDNN version as one number, as cuDNN does: 92400, or 8902 before 9."""
    major, minor, patch = (*version, 0, 0)[:3]
    return (10_000 if major > 8 else 1000) * major + 100 * minor + patch
