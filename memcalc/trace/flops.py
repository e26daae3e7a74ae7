"""How many floating-point operations an operator takes: PyTorch's own count, by shapes.

Source: ``torch/utils/flop_counter.py`` (2.13). Only products, convolutions and attention count;
a multiplication and an addition are two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from memcalc.records.trace import UNCOUNTED_FLOPS
from memcalc.workload.flash_attn.operators import NAMESPACES

_aten = torch.ops.aten


class Operations:
    """Floating-point operations of a run, step by step."""

    def __init__(self) -> None:
        self._by_step: Counter[int] = Counter()
        self._uncounted: dict[str, None] = {}
        """Operators of which PyTorch could not count them."""

    def add(self, step: int, operations: int) -> None:
        """So many more in a step."""
        self._by_step[step] += operations

    def known(self, step: int) -> int:
        """Those that were counted."""
        return self._by_step[step]

    def count(
        self, step: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> int | None:
        """Add those of a call, or remember that nobody knows how many they are."""
        operations = of(func, args, kwargs, out)
        if operations is None:
            self._uncounted[func._schema.name.removeprefix("aten::")] = None
        else:
            self._by_step[step] += operations
        return operations

    def of_step(self, step: int) -> int | None:
        """Those of a step; ``None`` where some could not be counted."""
        return None if self._uncounted else self._by_step[step]

    def said(self) -> tuple[str, ...]:
        """Why they are not known; nothing where they are."""
        if not self._uncounted:
            return ()
        return (f"{UNCOUNTED_FLOPS}: PyTorch cannot count {', '.join(self._uncounted)}",)


def of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int | None:
    """Operations of one call; 0 for operators that do not count, and where sizes are symbols.

    ``None`` where PyTorch's count fails: what it cannot count ends no estimate.
    """
    count = _COUNTS.get(func._overloadpacket) or _OF_PACKAGES.get(func._schema.name)
    if count is None or any(_has_symbols(arg) for arg in args):
        # A symbol must not be settled by counting.
        return 0
    try:
        return int(count(*args, **kwargs, out_val=out))
    except Exception:
        return None


def _has_symbols(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and not all(isinstance(n, int) for n in arg.shape)


def _grouped(
    left: torch.Tensor, right: torch.Tensor, *args: Any, out_val: torch.Tensor, **kwargs: Any
) -> int:
    """Shapes: see ``operators._grouped_mm``; every row of the rows M belongs to one group."""
    if left.dim() == 2 and right.dim() == 2:
        return 2 * left.shape[0] * left.shape[1] * right.shape[1]
    return 2 * out_val.numel() * left.shape[-1]


def _convolution_backward(
    grad: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    *args: Any,
    out_val: Any,
    **kwargs: Any,
) -> int:
    """The simulated device's convolution lacks an argument (``bias_sizes``) of the counted one."""
    counted = flop_registry[_aten.convolution_backward]
    return int(counted(grad, inputs, weight, None, *args, out_val=out_val, **kwargs))


def _product(count: Callable[..., int]) -> Callable[..., int]:
    """Products may be given the type of their result by place; the count takes it for a shape."""

    def counted(*args: Any, out_val: Any, **kwargs: Any) -> int:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return int(count(*tensors, out_val=out_val))

    return counted


_COUNTS: dict[Any, Any] = {
    **flop_registry,
    **{op: _product(flop_registry[op]) for op in (_aten.mm, _aten.addmm, _aten.bmm)},
    _aten.convolution_backward_overrideable: _convolution_backward,
}


def _recurrent(
    data: torch.Tensor,
    params: Sequence[torch.Tensor],
    *args: Any,
    out_val: Any,
    **kwargs: Any,
) -> int:
    """Every weight of a matrix is used once in a step of a sequence."""
    rows = data.numel() // data.shape[-1]
    return 2 * rows * sum(param.numel() for param in params if param.dim() == 2)


def _recurrent_backward(data: torch.Tensor, params: Any, *args: Any, **kwargs: Any) -> int:
    """Gradients of inputs, and of weights where they are wanted."""
    forward = _recurrent(data, params, out_val=None)
    return 2 * forward if args[-1][3] else forward


_COUNTS[_aten._cudnn_rnn] = _recurrent
_COUNTS[_aten._cudnn_rnn_backward] = _recurrent_backward
if hasattr(_aten, "_grouped_mm"):
    _COUNTS[_aten._grouped_mm] = _grouped


def _four_bit(
    left: torch.Tensor, packed: torch.Tensor, shape: Any, *args: Any, **kwargs: Any
) -> int:
    """Shapes: ``left`` [..., K], ``shape`` of the weights as they were, [N, K]."""
    return 2 * left.numel() * int(shape[0])


def _eight_bit(left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Shapes: [..., K] and [N, K]."""
    return 2 * left.numel() * right.shape[0]


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> int:
    """Shapes: (batch, length, heads, head size)."""
    return int(sdpa_flop_count(*(one.transpose(1, 2).shape for one in (q, k, v))))


def _attention_backward(grad: torch.Tensor, *given: Any, **_: Any) -> int:
    """Shapes: as before."""
    return int(sdpa_backward_flop_count(*(one.transpose(1, 2).shape for one in (grad, *given[:3]))))


def _by_values(*_: Any, **__: Any) -> int:
    raise NotImplementedError("lengths are on the device")


_OF_PACKAGES: dict[str, Callable[..., int]] = {
    "bitsandbytes::gemm_4bit": _four_bit,
    "bitsandbytes::gemv_4bit": _four_bit,
    "bitsandbytes::int8_linear_matmul": _eight_bit,
    **{
        f"{namespace}::_flash_attn_{name}": count
        for namespace in NAMESPACES
        for name, count in (
            ("forward", _attention),
            ("backward", _attention_backward),
            ("varlen_forward", _by_values),
            ("varlen_backward", _by_values),
        )
    },
}
"""Products in kernels of packages (``bitsandbytes/_ops.py``, 0.50.2, and flash-attn 2.8.3)."""
