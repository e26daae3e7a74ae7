"""bitsandbytes is imported once for all runs that use it, without Inductor, and so is peft.

As it is imported it gives its kernels for CPUs to ``torch.compile``, which imports Inductor; none
of them runs on a GPU. Read in bitsandbytes 0.50 (backends/default/ops.py).
"""

import contextlib
import importlib
from typing import Any

import torch

from memcalc import registry
from memcalc.engine.patches import Patches
from memcalc.records.plan import Plan


def load(plan: Plan) -> None:
    """Import it where a plan's run on a GPU would: peft does, and its optimizers."""
    used = plan.adapters is not None or plan.scheme is not None
    if plan.target == "cpu" or not (used or registry.of(plan).row.package == "bitsandbytes"):
        return
    with contextlib.suppress(ImportError):
        with Patches() as patches:
            patches.set(torch, "compile", _as_it_is)
            importlib.import_module("bitsandbytes")
        if plan.adapters is not None:
            importlib.import_module("peft")


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return function if function is not None else _as_it_is
