"""Imports bitsandbytes and peft once for all runs that use them, without Inductor.

bitsandbytes gives its kernels for CPUs to ``torch.compile``, which imports Inductor; none of them
runs on a GPU. Read in bitsandbytes 0.50 (backends/default/ops.py).
"""

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import torch

from memcalc.engine.patches import Patches


def load(modules: Sequence[str]) -> None:
    """Import it and others, so far as they are here."""
    for module in modules:
        with contextlib.suppress(ImportError), Patches() as patches:
            if module == "bitsandbytes":
                patches.set(torch, "compile", _as_it_is)
            importlib.import_module(module)


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return function if function is not None else _as_it_is
