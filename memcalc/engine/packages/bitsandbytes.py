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
    """Import bitsandbytes and other packages, if installed, without ``torch.compile``."""
    for module in modules:
        with contextlib.suppress(ImportError), Patches() as patches:
            if module == "bitsandbytes":
                patches.set(torch, "compile", _skip_compile)
            importlib.import_module(module)


def _skip_compile(function: Any = None, **_: Any) -> Any:
    return function if function is not None else _skip_compile
