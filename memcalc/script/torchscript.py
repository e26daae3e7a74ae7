"""TorchScript: what a script compiles or traces by ``torch.jit`` runs, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memcalc.script import place
from memcalc.script.patches import Patches
from memcalc.trace.torch_private.tracing import untraced

_SAID = "what TorchScript may fuse on a GPU runs operator by operator"
_FRAMES = 2
"""Those of a wrapper: TorchScript looks names up in its caller's frame."""


class _Untraced(TorchDispatchMode):
    """Below the tracer nothing is traced: there a size that is asked for is a number."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        with untraced():
            return func(*args, **(kwargs or {}))


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Let scripts trace, and say what is not done.

    Args:
        patches: what is changed.
        say: told of it, where the script's own line asks.
    """

    def trace(original: Any, traced: Any, *args: Any, **kwargs: Any) -> Any:
        told()
        try:
            with _Untraced():  # type: ignore[no-untyped-call]
                return original(traced, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # What runs in place of an operator here may be more than one that a graph can hold.
            say(place.named("of what is traced the code itself runs"))
            return traced

    def script(original: Any, *args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
        told()
        return original(*args, _frames_up=_frames_up + _FRAMES, **kwargs)

    def told() -> None:
        if place.line():
            say(place.named(_SAID))

    for name in ("trace", "trace_module"):
        patches.wrap(torch.jit, name, trace, also=(torch.jit._trace,))
    patches.wrap(torch.jit._script, "_script_impl", script)
