"""What a script decides by that zeros would answer wrongly: these have the answer of a good run.

Both back-ends share it. The operators run as they do on a GPU; only what is read of them is said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.torch_private.dispatch import FakeTensor, without_dispatch

Know = Callable[[torch.Tensor, torch.Tensor], None]
"""Told that a tensor of the device holds what one of the host holds."""
Say = Callable[[str], None]

VALID = "arguments of torch.distributions are taken to be valid"
OVERLAP = "windows of torch.istft on the GPU are taken to overlap"
NO_END = "generate() meets no end-of-sequence token: it makes as many tokens as it may"

inverts = threading.local()
"""``inside`` is true while ``torch.istft`` runs, which asks whether windows leave a gap."""


def install(patches: Patches, know: Know, say: Say) -> None:
    """Answer from now on.

    Args:
        patches: what is changed.
        know: told what a tensor holds.
        say: told what is taken to be so.
    """

    def all_true(original: Any, checked: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = original(checked)
        if out.device.type == "cuda":
            know(out, _filled(out, True))
        elif isinstance(out, FakeTensor):
            # A policy that acts on the host: its weights are not filled, what it makes is zeros.
            out = _filled(out, True)
        else:
            return out
        say(VALID)
        return out

    def met_end(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = original(*args, **kwargs)
        if out.device.type == "cuda":
            know(out, _filled(out, False))
            say(NO_END)
        return out

    def inverted(original: Any, spectrum: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if spectrum.device.type != "cuda":
            return original(spectrum, *args, **kwargs)  # type: ignore[no-any-return]
        say(OVERLAP)
        inverts.inside = True
        try:
            return original(spectrum, *args, **kwargs)  # type: ignore[no-any-return]
        finally:
            inverts.inside = False

    def criteria(module: ModuleType) -> None:
        patches.wrap(module.EosTokenCriteria, "__call__", met_end)

    patches.wrap(torch, "_is_all_true", all_true)
    patches.wrap(torch, "istft", inverted)
    patches.wrap(torch.Tensor, "istft", inverted)
    patches.when_imported("transformers.generation.stopping_criteria", criteria)


def _filled(like: torch.Tensor, value: bool) -> torch.Tensor:
    with without_dispatch():
        return torch.full(tuple(like.shape), value, dtype=like.dtype, device="cpu")
