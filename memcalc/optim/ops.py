"""The updates as torch operators, so that each device runs its own kernel.

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
from torch import Tensor

from memcalc.optim import chunked
from memcalc.optim.batch import Batch8bit, Batch32bit, BatchBF16, Scalars

_LIBRARY: Any = torch.library.Library("memcalc_optim", "DEF")
_SCHEMAS = {
    "adam_32bit_": (
        "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] state1, Tensor(c!)[] state2,"
        " float[] scalars) -> ()"
    ),
    "adam_8bit_": (
        "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] state1, Tensor(c!)[] state2,"
        " Tensor(d!)[] absmax1, Tensor(e!)[] absmax2, Tensor qmap1, Tensor qmap2,"
        " float[] scalars) -> ()"
    ),
    "adamw_bf16_": (
        "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq,"
        " Tensor(d!)[] shift, int[] keys, float[] scalars) -> ()"
    ),
}


def run_32bit(batch: Batch32bit, scalars: Scalars) -> None:
    """Update the batch in place on its device."""
    torch.ops.memcalc_optim.adam_32bit_(
        batch.params, batch.grads, batch.state1, batch.state2, scalars.pack()
    )


def run_8bit(batch: Batch8bit, scalars: Scalars) -> None:
    """Update the batch in place on its device."""
    torch.ops.memcalc_optim.adam_8bit_(
        batch.params,
        batch.grads,
        batch.state1,
        batch.state2,
        batch.absmax1,
        batch.absmax2,
        batch.qmap1,
        batch.qmap2,
        scalars.pack(),
    )


def run_bf16(batch: BatchBF16, scalars: Scalars) -> None:
    """Update the batch in place on its device."""
    torch.ops.memcalc_optim.adamw_bf16_(
        batch.params,
        batch.grads,
        batch.exp_avg,
        batch.exp_avg_sq,
        batch.shift,
        batch.keys,
        scalars.pack(),
    )


@cache
def cuda_path() -> ModuleType:
    """Give the module that updates CUDA tensors: Triton's kernels, or chunked torch code."""
    if importlib.util.find_spec("triton") is None:
        return chunked
    try:
        from memcalc.optim import launch

        launch.probe()
    except Exception as error:  # whatever keeps Triton from running, training should go on
        warnings.warn(
            f"Triton cannot run here ({type(error).__name__}: {error}), so the optimizer uses "
            "slower torch code; a C compiler on the PATH is what Triton most often lacks",
            RuntimeWarning,
            stacklevel=2,
        )
        return chunked
    return launch


def _nothing(*_: Any) -> None:
    """Stand for an update where tensors hold no data."""


def _implement(key: str, path: Callable[[], Any]) -> None:
    def adam_32bit(p: Any, g: Any, s1: Any, s2: Any, scalars: list[float]) -> None:
        batch = Batch32bit(params=p, grads=g, state1=s1, state2=s2)
        path().adam_32bit(batch, Scalars.unpack(scalars))

    def adam_8bit(  # the operator's schema fixes this signature
        p: Any, g: Any, s1: Any, s2: Any, a1: Any, a2: Any, q1: Tensor, q2: Tensor, scalars: Any
    ) -> None:
        batch = Batch8bit(
            params=p, grads=g, state1=s1, state2=s2, absmax1=a1, absmax2=a2, qmap1=q1, qmap2=q2
        )
        path().adam_8bit(batch, Scalars.unpack(scalars))

    def adamw_bf16(p: Any, g: Any, m: Any, v: Any, shift: Any, keys: Any, scalars: Any) -> None:
        batch = BatchBF16(params=p, grads=g, exp_avg=m, exp_avg_sq=v, shift=shift, keys=list(keys))
        path().adamw_bf16(batch, Scalars.unpack(scalars))

    _LIBRARY.impl("adam_32bit_", adam_32bit, key)
    _LIBRARY.impl("adam_8bit_", adam_8bit, key)
    _LIBRARY.impl("adamw_bf16_", adamw_bf16, key)


for _name, _schema in _SCHEMAS.items():
    _LIBRARY.define(_name + _schema)
    _LIBRARY.impl(_name, _nothing, "Meta")
_implement("CompositeExplicitAutograd", lambda: chunked)
_implement("CUDA", cuda_path)
