"""Floating-point operations of a step: by PyTorch's own counts, as one more step runs under them.

Source: ``torch/utils/flop_counter.py``; its own mode asks each operator for its parts, and follows
modules, which takes longer than the step. Only products, convolutions and attention count; a
multiplication and an addition are two.
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
    """Counts the operations of all that runs inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self._counts = {**_counts_of("flop_registry"), **_mapping()}
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


def of_step(step: Callable[[Counter], int]) -> int | str:
    """Return how many operations a step makes, or why PyTorch cannot count them."""
    try:
        with Counter() as counter:
            return step(counter)
    except Exception as error:
        # What cannot be counted ends no estimate.
        return f"PyTorch cannot count them ({type(error).__name__})"


def _counts_of(name: str) -> Any:
    """Return PyTorch's own formulas; PyTorch before 2.3 has no register of them."""
    return getattr(importlib.import_module("torch.utils.flop_counter"), name)


def _attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Count attention whose keys and values serve several heads of the queries."""
    return int(_counts_of("sdpa_flop_count")(q.shape, _spread(k, q), _spread(v, q)))


def _attention_backward(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return int(
        _counts_of("sdpa_backward_flop_count")(grad.shape, q.shape, _spread(k, q), _spread(v, q))
    )


def _spread(tensor: torch.Tensor, q: torch.Tensor) -> tuple[int, ...]:
    """Return the shape [batch, heads, length, size] with as many heads as the queries have."""
    batch, _, length, size = tensor.shape
    return batch, q.shape[1], length, size


def _recurrent(data: Any, params: Sequence[Any], *_: Any, **__: Any) -> int:
    """Every weight of a matrix is used once in a step of a sequence."""
    rows = data.numel() // data.shape[-1]
    return 2 * int(rows) * sum(int(p.numel()) for p in params if p.dim() == 2)


def _recurrent_backward(data: Any, params: Any, *args: Any, **__: Any) -> int:
    """Gradients of inputs, and of weights where they are wanted."""
    forward = _recurrent(data, params)
    return 2 * forward if args[-1][3] else forward


def _four_bit(left: Any, packed: Any, shape: Any, *_: Any, **__: Any) -> int:
    """Shapes: ``left`` [..., K], ``shape`` of the weights as they were, [N, K]."""
    return 2 * int(left.numel()) * int(shape[0])


def _eight_bit(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Shapes: [..., K] and [N, K]."""
    return 2 * int(left.numel()) * int(right.shape[0])


def _grouped(left: Any, right: Any, *_: Any, out_val: Any, **__: Any) -> int:
    """Every row of ``left`` belongs to one group."""
    if left.dim() == 2 and right.dim() == 2:
        return 2 * int(left.shape[0]) * int(left.shape[1]) * int(right.shape[1])
    return 2 * int(out_val.numel()) * int(left.shape[-1])


def _mapping() -> dict[Any, Any]:
    """Return formulas beside PyTorch's own, by operator; of packages, if they are imported."""
    found: dict[Any, Any] = {
        **{getattr(_aten, name): _attention for name in _FORWARD},
        **{getattr(_aten, f"{name}_backward"): _attention_backward for name in _FORWARD},
        _aten._cudnn_rnn: _recurrent,
        _aten._cudnn_rnn_backward: _recurrent_backward,
    }
    of_packages = (
        (_aten, "_grouped_mm", _grouped),
        (torch.ops.bitsandbytes, "gemm_4bit", _four_bit),
        (torch.ops.bitsandbytes, "gemv_4bit", _four_bit),
        (torch.ops.bitsandbytes, "int8_linear_matmul", _eight_bit),
    )
    for owner, name, count in of_packages:
        if hasattr(owner, name):
            found[getattr(owner, name)] = count
    return found
