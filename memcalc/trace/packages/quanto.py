"""optimum-quanto: quantised keys and values, packed in bytes. Read in 0.2.7.

Its Python runs as it is, but for two things: it packs what is a plain tensor by its exact type, and
its compiled extensions turn packed bytes back.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import FakeTensor, for_every_device
from memcalc.trace.torch_private.names import replaced

NAMESPACE = "quanto"
"""Of its operators."""


class Kernels:
    """What runs each of its operators on a device.

    Args:
        place: ``cuda`` or ``cpu``.
    """

    def __init__(self, place: str) -> None:
        self._unpack = _unpack_on_cpu if place == "cpu" else _unpack

    def __call__(self, func: Any) -> Callable[..., Any] | None:
        """The function for an operator; ``None``: PyTorch runs it as it is."""
        if func._schema.name == "quanto::unpack":
            return self._unpack
        # Written in Python for every device, of operators that are seen one by one.
        return for_every_device(func)


def _unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Source: library/extensions/cuda/unpack.cu, ``allocate_output``."""
    return packed.new_empty((packed.shape[0] * (8 // bits), *packed.shape[1:]))


def _unpack_on_cpu(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Source: library/extensions/cpp/unpack.cpp."""
    mask = (1 << bits) - 1
    parts = [packed & mask]
    for shift in range(bits, 8, bits):
        parts.append((packed & (mask << shift)) >> shift)
    return torch.cat(parts)


@contextlib.contextmanager
def of_fakes() -> Iterator[None]:
    """Let it pack fake tensors as it packs plain ones."""
    packed = importlib.import_module("optimum.quanto.tensor.packed").PackedTensor
    weights = importlib.import_module("optimum.quanto.tensor.weights.qbits").WeightQBitsTensor
    init = weights.__init__

    def made(
        self: Any,
        qtype: Any,
        axis: Any,
        group: Any,
        size: Any,
        stride: Any,
        data: Any,
        *rest: Any,
        **more: Any,
    ) -> None:
        if type(data) is FakeTensor:
            data = packed.pack(data, qtype.bits)
        init(self, qtype, axis, group, size, stride, data, *rest, **more)

    with replaced(weights, "__init__", made):
        yield
