"""Registers the updates as torch operators, so that each device runs its own kernel.

``memcalc_optim::adam_32bit_``, ``adam_8bit_`` and ``adamw_bf16_``: Triton on CUDA where Triton
is installed, chunked torch code elsewhere, and nothing on meta tensors: there the operator has
no effect but its mutation, and, like the fused kernel, no temporaries.
"""

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch

from memcalc.optim import chunked
from memcalc.optim.scalars import Scalars

_LIBRARY: Any = torch.library.Library("memcalc_optim", "DEF")
_MOMENTS = "Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] state1, Tensor(c!)[] state2"
_SCHEMAS = {
    "adam_32bit": _MOMENTS,
    "adam_8bit": f"{_MOMENTS}, Tensor(d!)[] absmax1, Tensor(e!)[] absmax2,"
    " Tensor qmap1, Tensor qmap2",
    "adamw_bf16": "Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg,"
    " Tensor(c!)[] exp_avg_sq, Tensor(d!)[] shift, int[] keys",
}
"""Arguments of each update without its scalars; the modules of both paths have functions of the
same names. Tensors are flat and dense, a list has one dtype, and lists are parallel."""


def run(name: str, *given: Any, scalars: Scalars) -> None:
    """Run an optimizer operator in place on its tensors' device; arguments: see ``_SCHEMAS``."""
    getattr(torch.ops.memcalc_optim, f"{name}_")(*given, list(map(float, scalars)))


@cache
def cuda_path() -> ModuleType:
    """Return the module that updates CUDA tensors: ``launch`` if Triton runs, else ``chunked``."""
    if importlib.util.find_spec("triton") is None:
        return chunked
    try:
        from memcalc.optim import launch

        launch.probe()
    except Exception as error:  # training should go on if Triton fails for any reason
        warnings.warn(
            f"Triton cannot run here ({type(error).__name__}: {error}), so the optimizer uses "
            "slower torch code; a C compiler on the PATH is what Triton most often lacks",
            RuntimeWarning,
            stacklevel=2,
        )
        return chunked
    return launch


def _register_operator(name: str, key: str, path: Callable[[], ModuleType]) -> None:
    def update(*given: Any) -> None:
        getattr(path(), name)(*given[:-1], Scalars(*given[-1]))

    _LIBRARY.impl(f"{name}_", update, key)


for _name, _schema in _SCHEMAS.items():
    _LIBRARY.define(f"{_name}_({_schema}, float[] scalars) -> ()")
    _LIBRARY.impl(f"{_name}_", lambda *_: None, "Meta")
    _register_operator(_name, "CompositeExplicitAutograd", lambda: chunked)
    _register_operator(_name, "CUDA", cuda_path)
