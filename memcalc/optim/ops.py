"""The updates as torch operators, so that each device runs its own kernel.

``memcalc_optim::adam_32bit_``, ``adam_8bit_`` and ``adamw_bf16_``: Triton on CUDA where Triton
is installed, chunked torch code elsewhere, and nothing on meta tensors: there the operator has
no effect but its mutation, and, like the fused kernel, no temporaries.
"""

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import Any

import torch

from memcalc.optim import chunked
from memcalc.optim.batch import Batch8bit, Batch32bit, BatchBF16, Scalars

Batch = Batch32bit | Batch8bit | BatchBF16
_LIBRARY: Any = torch.library.Library("memcalc_optim", "DEF")
_SCHEMAS: dict[type[Batch], tuple[str, str]] = {
    Batch32bit: (
        "adam_32bit",
        "Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] state1, Tensor(c!)[] state2",
    ),
    Batch8bit: (
        "adam_8bit",
        "Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] state1, Tensor(c!)[] state2,"
        " Tensor(d!)[] absmax1, Tensor(e!)[] absmax2, Tensor qmap1, Tensor qmap2",
    ),
    BatchBF16: (
        "adamw_bf16",
        "Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq,"
        " Tensor(d!)[] shift, int[] keys",
    ),
}
"""The function of a path that updates a batch, and the batch's fields as a schema has them."""


def run(batch: Batch, scalars: Scalars) -> None:
    """Update the batch in place on its device."""
    name, _ = _SCHEMAS[type(batch)]
    given = (getattr(batch, field.name) for field in fields(batch))
    getattr(torch.ops.memcalc_optim, f"{name}_")(*given, scalars.pack())


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


def _implement(kind: type[Batch], name: str, key: str, path: Callable[[], Any]) -> None:
    names = [field.name for field in fields(kind)]

    def update(*given: Any) -> None:
        batch = kind(**dict(zip(names, given[:-1], strict=True)))
        getattr(path(), name)(batch, Scalars.unpack(given[-1]))

    _LIBRARY.impl(f"{name}_", update, key)


for _kind, (_name, _schema) in _SCHEMAS.items():
    _LIBRARY.define(f"{_name}_({_schema}, float[] scalars) -> ()")
    _LIBRARY.impl(f"{_name}_", _nothing, "Meta")
    _implement(_kind, _name, "CompositeExplicitAutograd", lambda: chunked)
    _implement(_kind, _name, "CUDA", cuda_path)
