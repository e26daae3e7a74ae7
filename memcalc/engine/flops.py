"""Counts the floating-point operations of an extra step by PyTorch's own formulas.

Source: ``torch/utils/flop_counter.py``; its own mode decomposes each operator and follows modules,
which takes longer than the step. Only products, convolutions and attention count; a multiplication
with an addition is two operations.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_FORWARD = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


class Counter(TorchDispatchMode):
    """A mode that counts the floating-point operations of all operators that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._counts = {**_pytorch_formula("flop_registry"), **_more_formulas()}
        self._whole = {torch.ops.prim.device.default}
        """Operators that decompose into no others."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        count = self._counts.get(func._overloadpacket)
        if count is None and func not in self._whole:
            with self:
                made = func.decompose(*args, **named)
            if made is not NotImplemented:
                return made
            self._whole.add(func)
        made = func(*args, **named)
        if count is not None:
            self.total += int(count(*args, **named, out_val=made))
        return made


def count_step(step: Callable[[Counter], int]) -> int | str:
    """Run a step under a counter; return its FLOPs, or why PyTorch cannot count them."""
    try:
        with Counter() as counter:
            return step(counter)
    except Exception as error:
        # A failed count does not end the estimate.
        return f"PyTorch cannot count them ({type(error).__name__})"


def _pytorch_formula(name: str) -> Any:
    """Return a formula or register of PyTorch's flop counter, by its name."""
    return getattr(importlib.import_module("torch.utils.flop_counter"), name)


def _count_attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Count the FLOPs of attention, of which keys and values may serve several query heads."""
    return int(
        _pytorch_formula("sdpa_flop_count")(q.shape, _expand_heads(k, q), _expand_heads(v, q))
    )


def _count_attention_backward(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return int(
        _pytorch_formula("sdpa_backward_flop_count")(
            grad.shape, q.shape, _expand_heads(k, q), _expand_heads(v, q)
        )
    )


def _expand_heads(tensor: torch.Tensor, q: torch.Tensor) -> tuple[int, ...]:
    """Return the shape [batch, heads, length, size] with as many heads as the queries have."""
    batch, _, length, size = tensor.shape
    return batch, q.shape[1], length, size


def _count_recurrent(data: Any, params: Sequence[Any], *_: Any, **__: Any) -> int:
    """Count a recurrent layer's FLOPs: a matrix's weights are used once per sequence step."""
    rows = data.numel() // data.shape[-1]
    return 2 * int(rows) * sum(int(p.numel()) for p in params if p.dim() == 2)


def _count_recurrent_backward(data: Any, params: Any, *args: Any, **__: Any) -> int:
    """Count the FLOPs of a recurrent layer's gradients of inputs and, if needed, weights."""
    forward = _count_recurrent(data, params)
    return 2 * forward if args[-1][3] else forward


def _count_four_bit(left: Any, packed: Any, shape: Any, *_: Any, **__: Any) -> int:
    """Count the FLOPs of ``left`` [..., K] times 4-bit weights of unpacked shape [N, K]."""
    return 2 * int(left.numel()) * int(shape[0])


def _count_eight_bit(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Count the FLOPs of a product of [..., K] with [N, K]."""
    return 2 * int(left.numel()) * int(right.shape[0])


def _count_grouped_product(left: Any, right: Any, *_: Any, out_val: Any, **__: Any) -> int:
    """Count a grouped product's FLOPs: every row of ``left`` belongs to one group."""
    if left.dim() == 2 and right.dim() == 2:
        return 2 * int(left.shape[0]) * int(left.shape[1]) * int(right.shape[1])
    return 2 * int(out_val.numel()) * int(left.shape[-1])


def _more_formulas() -> dict[Any, Any]:
    """Return formulas that PyTorch does not have, by operator; of packages, if imported."""
    found: dict[Any, Any] = {
        **{getattr(_aten, name): _count_attention for name in _FORWARD},
        **{getattr(_aten, f"{name}_backward"): _count_attention_backward for name in _FORWARD},
        _aten._cudnn_rnn: _count_recurrent,
        _aten._cudnn_rnn_backward: _count_recurrent_backward,
    }
    of_packages = (
        (_aten, "_grouped_mm", _count_grouped_product),
        (torch.ops.bitsandbytes, "gemm_4bit", _count_four_bit),
        (torch.ops.bitsandbytes, "gemv_4bit", _count_four_bit),
        (torch.ops.bitsandbytes, "int8_linear_matmul", _count_eight_bit),
    )
    for owner, name, count in of_packages:
        if hasattr(owner, name):
            found[getattr(owner, name)] = count
    return found
