"""Stand-ins for the compiled parts of packages whose Python code is installed without them.

The package runs its own Python code; a function here allocates what the compiled one does. Read
in apex of 2026 (``csrc``), causal-conv1d 1.6, mamba-ssm 2.3 (``csrc/selective_scan``) and
grouped_gemm 0.3; what a kernel needs inside a call is left out below 64 KiB.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

Tensor = torch.Tensor
_SAID = "{}'s compiled part is not installed: a stand-in allocates what that does"
_HALF = (torch.float16, torch.bfloat16)
_PARTS = 16
"""Partial sums of a norm's weight gradient, in apex."""
_CHUNK = 2048
"""Positions of a chunk of mamba-ssm's selective scan."""


def _do_nothing(*_: Any) -> None:
    """Do nothing, in place of a kernel that writes into its arguments."""


def _make_like(tensor: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _return_gradient(gradient: Tensor, *_: Any) -> Tensor:
    """Return the gradient, contiguous, as the result of a kernel that overwrites it."""
    return gradient.contiguous()


def _allocate_norms(_: int, __: Tensor, lists: list[list[Tensor]], per_tensor: bool = False) -> Any:
    total = lists[0][0].new_empty(1, dtype=torch.float32)
    return total, total.new_empty(len(lists[0]) if per_tensor else 0)


def _allocate_statistics(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    kind = torch.float32 if tensor.dtype in _HALF else tensor.dtype
    return tensor.new_empty(tensor.numel() // math.prod(shape), dtype=kind)


def _make_norm(means: int, *, mixed: bool = False) -> Callable[..., Any]:
    """Return a norm's forward, which allocates its result and ``means`` statistics of each row."""

    def forward(tensor: Tensor, shape: Sequence[int], *rest: Any) -> Any:
        out = torch.empty_like(tensor, dtype=rest[0].dtype if mixed else tensor.dtype)
        return [out, *(_allocate_statistics(tensor, shape) for _ in range(means))]

    return forward


def _make_norm_backward(first: int, weights: int) -> Callable[..., Any]:
    """Return a norm's backward, which allocates the gradients.

    Args:
        first: the place of its input among the arguments.
        weights: how many it has.
    """

    def backward(*args: Any) -> Any:
        out, own = torch.empty_like(args[first]), args[first + 2 : first + 2 + weights]
        found = [torch.empty_like(one) for one in own]
        # The partial sums are gone behind the call.
        _ = [one.new_empty((_PARTS, one.numel()), dtype=torch.float32) for one in own]
        return [out, *found] if own else out

    return backward


def _allocate_scan(
    u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Any, z: Any, *_: Any
) -> list[Tensor]:
    gated = [] if z is None else [torch.empty_like(z)]
    chunks = -(-u.shape[2] // _CHUNK)
    states = u.new_empty((*u.shape[:2], chunks, 2 * a.shape[1]), dtype=a.dtype)
    return [torch.empty_like(delta), states, *gated]


def _allocate_scan_gradients(
    u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Any, z: Any, bias: Any, *rest: Any
) -> list[Tensor | None]:
    _, _, out, dz, _, again = rest
    found = [dz if dz is not None else torch.empty_like(z)] if z is not None else []
    if again:
        found.append(torch.empty_like(out))
    first = [torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(a)]
    wide = [
        torch.zeros_like(one, dtype=torch.float32 if one.dim() >= 3 else one.dtype)
        for one in (b, c)
    ]
    weights = [None if one is None else torch.zeros_like(one) for one in (d, bias)]
    return [*first, wide[0].to(b.dtype), wide[1].to(c.dtype), *weights, *found]


def _get_batch_per_block(_: int, keys: int, *__: int) -> int:
    """Return the rows of a block of apex's masked softmax, for which Megatron-LM asks.

    Source: apex ``csrc/megatron/scaled_masked_softmax.h``.
    """
    width = 1 << max(0, keys - 1).bit_length()
    return 128 // min(width, 32) * (2 if width <= 128 else 1)


_SOFTMAX: dict[str, Callable[..., Any]] = {"forward": _make_like, "backward": _make_like}
_MODULES: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
    "amp_C": (
        "apex",
        {
            **{
                f"multi_tensor_{name}": _do_nothing
                for name in (
                    *("adam", "adam_capturable", "adam_capturable_master", "sgd", "adagrad"),
                    *("novograd", "lamb", "lamb_mp", "scale", "axpby"),
                )
            },
            **{f"multi_tensor_{name}": _allocate_norms for name in ("l2norm", "l2norm_mp")},
        },
    ),
    "fused_layer_norm_cuda": (
        "apex",
        {
            **{name: _make_norm(2) for name in ("forward", "forward_affine")},
            **{f"rms_{name}": _make_norm(1) for name in ("forward", "forward_affine")},
            "forward_affine_mixed_dtypes": _make_norm(2, mixed=True),
            "rms_forward_affine_mixed_dtypes": _make_norm(1, mixed=True),
            "backward": _make_norm_backward(3, 0),
            "backward_affine": _make_norm_backward(3, 2),
            "rms_backward": _make_norm_backward(2, 0),
            "rms_backward_affine": _make_norm_backward(2, 1),
        },
    ),
    "generic_scaled_masked_softmax_cuda": ("apex", _SOFTMAX),
    "scaled_masked_softmax_cuda": (
        "apex",
        {**_SOFTMAX, "get_batch_per_block": _get_batch_per_block},
    ),
    **{
        f"{name}_softmax_cuda": ("apex", {**_SOFTMAX, "backward": _return_gradient})
        for name in ("scaled", "scaled_upper_triang_masked")
    },
    "fused_weight_gradient_mlp_cuda": (
        "apex",
        {f"wgrad_gemm_accum_fp{bits}": _do_nothing for bits in (16, 32)},
    ),
    "causal_conv1d_cuda": (
        "causal_conv1d",
        {f"causal_conv1d_{name}": _do_nothing for name in ("fwd", "bwd", "update")},
    ),
    "selective_scan_cuda": ("mamba_ssm", {"fwd": _allocate_scan, "bwd": _allocate_scan_gradients}),
    "grouped_gemm_backend": ("grouped_gemm", {"gmm": _do_nothing}),
}
"""Functions of compiled modules, with the package that each belongs to."""


class Compiled(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds compiled modules that nothing else finds, where their package is installed."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the import spec of a stand-in, or None for any other module."""
        owner, _ = _MODULES.get(name, ("", {}))
        if not owner or (owner not in sys.modules and importlib.util.find_spec(owner) is None):
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a stand-in module with its functions, and report it as an assumption."""
        owner, functions = _MODULES[module.__name__]
        vars(module).update(functions)
        self._say(_SAID.format(owner))
