"""Operators that fake tensors cannot run, or run otherwise than CUDA does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memcalc.trace import device
from memcalc.trace.operators import (
    algebra,
    batch_norm,
    convolution,
    ctc,
    cudnn_recurrent,
    decompositions,
    depthwise,
    distances,
    earlier,
    encoder,
    first_fused,
    gradients,
    lookups,
    losses,
    native_convolution,
    observed,
    patches,
    recurrent,
    release,
    sampling,
    scattering,
    strides,
    synced_batch_norm,
)
from memcalc.trace.operators.composed import KERNELS_ON_CUDA
from memcalc.version import NEWEST_TORCH

_aten = torch.ops.aten


def _selected(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As many elements as the mask has positions: all, where its values are not known.

    Their positions are made first: aten/src/ATen/native/cuda/IndexKernel.cpp (2.13).
    """
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    positions = mask.expand(shape).nonzero()
    out = torch.empty(positions.shape[0], dtype=tensor.dtype, device=tensor.device)
    del positions
    return out


def _scattered_back(grad: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The gradient at the mask's places, and zeros for what was left of the source.

    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, ``masked_scatter_backward`` (2.13).
    """
    out = grad.masked_select(mask)
    left = math.prod(sizes) - out.numel()
    if left > 0:
        out = torch.cat((out, grad.new_zeros((left,))))
    return out.view(list(sizes))


def _all_alike(
    tensor: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Without values all entries may be alike; programs that count repetitions want that."""
    like = {"dtype": torch.long, "device": tensor.device}
    return (
        torch.empty(1, dtype=tensor.dtype, device=tensor.device),
        torch.empty(tensor.shape if return_inverse else 0, **like),  # type: ignore[call-overload]
        torch.empty(1 if return_counts else 0, **like),  # type: ignore[call-overload]
    )


def _in_place_alone(*_: Any, **__: Any) -> None:
    """The kernel writes into what it is given, and takes nothing beside."""


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """CUDA takes every floating type (aten/src/ATen/native/cuda/GroupedBlas.cpp), fakes only bf16.

    Shapes: rows M sorted into G groups; (M, K) x (G, K, N) -> (M, N); (K, M) x (M, N) -> (G, K, N).
    """
    if left.dim() == 2 and right.dim() == 2:
        assert offs is not None
        shape: tuple[int, ...] = (offs.shape[0], left.shape[0], right.shape[1])
    elif left.dim() == 2:
        shape = (left.shape[0], right.shape[-1])
    elif right.dim() == 2:
        shape = (left.shape[1], right.shape[1])
    else:
        shape = (left.shape[0], left.shape[1], right.shape[-1])
    return left.new_empty(shape, dtype=out_dtype or left.dtype)


OVERRIDES: dict[Any, tuple[Callable[..., Any], str]] = {
    _aten.unique_consecutive.default: (_all_alike, "all entries are taken to be alike"),
    _aten.masked_select.default: (_selected, ""),
    _aten.masked_scatter_backward.default: (_scattered_back, ""),
    _aten.logsumexp.default: (decompositions.logsumexp, ""),
    _aten.mse_loss.default: (decompositions.mean_squares, ""),
    _aten.smooth_l1_loss.default: (decompositions.mean_squares, ""),
    _aten.huber_loss.default: (decompositions.huber, ""),
    _aten.roll.default: (decompositions.roll, ""),
    _aten.isinf.default: (decompositions.isinf, ""),
    _aten.im2col.default: (decompositions.im2col, ""),
    _aten.col2im.default: (decompositions.col2im, ""),
    **{
        getattr(window, name): (instead, "")
        for window, instead in (
            (_aten.blackman_window, decompositions.blackman_window),
            (_aten.kaiser_window, decompositions.kaiser_window),
        )
        for name in ("default", "periodic", "beta")
        if name in window.overloads()
    },
    _aten.affine_grid_generator.default: (decompositions.affine_grid, ""),
    **{
        getattr(asked, name): (ctc.asks_another, "")
        for library in ("cudnn", "miopen")
        if (asked := getattr(_aten, f"_use_{library}_ctc_loss", None)) is not None
        for name in asked.overloads()
    },
    _aten._ctc_loss.default: (ctc.forward, ""),
    _aten._ctc_loss_backward.default: (ctc.backward, ""),
    _aten.native_batch_norm_backward.default: (batch_norm.backward, ""),
    **{
        one: (_in_place_alone, "")
        for step in (
            *(_aten._fused_sgd_, _aten._fused_adagrad_),
            *(_aten._fused_adam_, _aten._fused_adamw_),
        )
        for one in (getattr(step, name) for name in step.overloads())
        if not one._schema.returns
    },
    **cudnn_recurrent.OVERRIDES,
    **distances.OVERRIDES,
    **encoder.OVERRIDES,
    **algebra.OVERRIDES,
    **lookups.OVERRIDES,
    **losses.OVERRIDES,
    **observed.OVERRIDES,
    **recurrent.OVERRIDES,
    **sampling.OVERRIDES,
    **scattering.OVERRIDES,
    **synced_batch_norm.OVERRIDES,
}
"""What runs instead, and what is assumed by it (empty: nothing).

It may return ``NotImplemented``: the operator itself runs.
"""
_OLDER: dict[Any, tuple[Callable[..., Any], str]] = {
    **first_fused.OVERRIDES,
    _aten._safe_softmax.default: (decompositions.safe_softmax, ""),
}
_OLDER_UNTIL = (2, 6)
"""The same before this release; later ones run these operators as they are, which is faster."""
SPLIT: dict[Any, tuple[Callable[..., bool], Callable[..., Any]]] = {
    _aten.convolution.default: (convolution.copies, convolution.forward),
    _aten.convolution_backward.default: (convolution.several, convolution.backward),
}
"""What cuDNN does in several steps, where that is so for these arguments."""
WITHOUT_CUDNN: dict[Any, Callable[..., Any]] = {
    _aten.convolution.default: native_convolution.forward,
    _aten.convolution_backward.default: native_convolution.backward,
    _aten.native_batch_norm_backward.default: batch_norm.own_backward,
}
"""What runs instead where cuDNN is switched off; it may return ``NotImplemented``."""


def without_cudnn(func: Any, args: tuple[Any, ...]) -> bool:
    """PyTorch does not ask cuDNN for this call, though it is on."""
    if func is _aten.convolution.default:
        return depthwise.without_cudnn(args[0], args[1], args[3:])
    if func is _aten.convolution_backward.default:
        return depthwise.without_cudnn(args[1], args[2], args[4:-1])
    return False


def _cudnn_attention(*args: Any, **kwargs: Any) -> Any:
    """Row statistics are made only where gradients are wanted; the fake kernel always makes them.

    Source: aten/src/ATen/native/cudnn/MHA.cpp, ``run_cudnn_SDP_fprop`` (2.11 and 2.13).
    """
    out = _aten._scaled_dot_product_cudnn_attention.default(*args, **kwargs)
    wanted = args[4]
    return out if wanted else (out[0], None, *out[2:])


def _efficient_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any,
    **more: Any,
) -> Any:  # fmt: skip
    """Heads may share keys from PyTorch 2.14 on, which fake kernels of earlier ones do not know."""
    of_query, *others, of_mask = _aten._scaled_dot_product_efficient_attention_backward.default(
        grad, query, key, value, *rest, **more
    )
    if query.shape[1] != key.shape[1]:
        order = (0, 2, 1, 3)
        others = [
            torch.empty_permuted(one.shape, order, dtype=one.dtype, device=one.device)
            for one in (key, value)
        ]
    return of_query, *others, of_mask


FAKE_KERNELS: dict[Any, Callable[..., Any]] = {
    **strides.FAKE_KERNELS,
    _aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    # It returns what it is given (torch/csrc/distributed/c10d/Functional.cpp).
    torch.ops._c10d_functional.wait_tensor.default: lambda tensor: tensor,
}
"""Operators whose fake kernel makes other outputs than CUDA's."""
if hasattr(_aten, "_grouped_mm"):
    FAKE_KERNELS[_aten._grouped_mm.default] = _grouped_mm

_libraries: list[torch.library.Library] = []
_of_release: list[torch.library.Library] = []


def install(version: tuple[int, int] = NEWEST_TORCH) -> None:
    """Keep operators whole that are whole on CUDA, and run them as a release of PyTorch does.

    That there is a kernel is what counts; the fake mode answers before it would run.
    """
    release.use(version)
    earlier.use()
    for name, instead in _OLDER.items():
        OVERRIDES.pop(name, None)
        if not release.is_since(*_OLDER_UNTIL):
            OVERRIDES[name] = instead
    _of_release.clear()
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in gradients.of_release().items():
        library.impl(name, kernel, device.keys()[0])
    _of_release.append(library)
    if _libraries:
        return
    patches.install_once()
    library = torch.library.Library("aten", "IMPL")
    for name in KERNELS_ON_CUDA:
        library.impl(name, _never, device.keys()[1])
    for name, kernel in gradients.KERNELS.items():
        library.impl(name, kernel, device.keys()[0])
    for name, kernel in cudnn_recurrent.KERNELS.items():
        # Inside autocast it is asked first, and in inference mode autograd is not asked at all.
        library.impl(name, kernel, device.keys()[0])
        library.impl(name, kernel, cudnn_recurrent.autocast_key())
    _views_of_zeros(library)
    _libraries.append(library)


def _views_of_zeros(library: torch.library.Library) -> None:
    """Let views of what is known to be zero come to Python, as all others do.

    They have kernels of their own ahead of it, which do the same as those of any other tensor: what
    they make of a fake tensor is none (native_functions.yaml, 2.13).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("view", "as_strided", "_reshape_alias"):
            library.impl(name, torch.library.fallthrough_kernel, "ZeroTensor", allow_override=True)


def uninstall() -> None:
    """Let operators be taken apart again, and PyTorch's own functions be what they were."""
    _libraries.clear()
    _of_release.clear()
    release.use(NEWEST_TORCH)
    earlier.use()


def _never(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("an operator ran outside of the fake mode")
