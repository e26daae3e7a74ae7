"""bitsandbytes is imported once for all runs that use it, without Inductor, and so is peft.

As it is imported it gives its kernels for CPUs to ``torch.compile``, which imports Inductor; none
of them runs on a GPU. Read in bitsandbytes 0.50 (backends/default/ops.py).
"""

import contextlib
import importlib
from collections.abc import Collection
from typing import Any

import torch

from memcalc.engine.patches import Patches


def load(packages: Collection[str]) -> None:
    """Import it, and peft, where they are among these packages."""
    with contextlib.suppress(ImportError):
        if "bitsandbytes" in packages:
            with Patches() as patches:
                patches.set(torch, "compile", _as_it_is)
                importlib.import_module("bitsandbytes")
        if "peft" in packages:
            importlib.import_module("peft")


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return function if function is not None else _as_it_is
