"""What CUDA's kernels refuse to take: first of all, tensors of several types or devices together.

Fake tensors let them pass: what they make has a size all the same. Source of rules and words: what
PyTorch's own CUDA code said of each (2.13, over the stand-in driver).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from memcalc.trace.operators import refused_numbers, refused_sizes, refused_types
from memcalc.trace.operators.scalar_types import c_name_of, name_of
from memcalc.trace.operators.type_pairs import PAIRS, check_pairs, dense

_NARROW = (torch.float16, torch.bfloat16)
_MATRICES = {"mm": 0, "addmm": 1}
"""Products of two matrices, by the place of the first."""
_BATCH_NORMS = (
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    *("_batch_norm_with_update", "cudnn_batch_norm"),
)
_ONE_DEVICE = frozenset(
    """
    addr binary_cross_entropy bucketize clamp_max clamp_min complex convolution embedding equal
    _embedding_bag _embedding_bag_forward_only gcd huber_loss igamma igammac index_fill
    index_reduce index_select lcm logaddexp logaddexp2 masked_scatter masked_select mse_loss
    multi_margin_loss multilabel_margin_loss_forward polar _prelu_kernel smooth_l1_loss
    soft_margin_loss take
    """.split()
)
"""Fake tensors do not look at where what these take lies."""
_INDEXES = frozenset(("index", "index_put", "_index_put_impl"))
_CLASSES = frozenset(("nll_loss_forward", "nll_loss2d_forward"))
_TRANSFORMS = frozenset(("_fft_c2c", "_fft_r2c"))
_PROMOTING = frozenset(("add", "sub", "mul", "div"))
"""In place, of what fake tensors leave some unlooked at."""
_BY_NUMBERS = frozenset((*refused_numbers.CONVERTED, "pow"))

Check = Callable[[tuple[Any, ...], dict[str, Any]], None]
"""Raises ``RuntimeError`` in PyTorch's words where CUDA refuses these arguments."""


def check_of(func: Any) -> Check | None:
    """How to check what this operator is given; ``None``: CUDA takes all that fake tensors do."""
    if func.namespace != "aten" or func._overloadname.startswith("dtype"):
        return None
    written = func._schema.name.removeprefix("aten::")
    name = written.rstrip("_")
    checks = tuple(_checks(name, in_place=written != name))
    refused = refused_types.of(func)
    converted = refused_numbers.CONVERTED.get(name)
    if not checks and not refused and converted is None:
        return None

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for one in checks:
            one(args)
        if refused:
            refused_types.check(refused, func, args, kwargs)
        if converted is not None:
            refused_numbers.check(converted, args, kwargs)

    return check


def looks_at_numbers(func: Any) -> bool:
    """Whether a check of this operator depends on the numbers that it is given."""
    return func._schema.name.removeprefix("aten::").rstrip("_") in _BY_NUMBERS


def _checks(name: str, *, in_place: bool) -> Iterator[Callable[[tuple[Any, ...]], None]]:
    if name in _INDEXES:
        yield _indices_beside
        yield refused_sizes.check_indices
    if name in _ONE_DEVICE:
        yield _on_one_device
    if name == "_pack_padded_sequence":
        yield _lengths_on_host
    if name in _MATRICES:
        yield lambda args: _multiply(*args[_MATRICES[name] :][:2])
    if name in _CLASSES:
        yield _classes_are_numbers
    if name in PAIRS:
        yield lambda args: check_pairs(PAIRS[name], args)
    if name in _BATCH_NORMS:
        yield _statistics_as_wide
    if name in _TRANSFORMS:
        yield _narrow_ones_by_two
    if in_place and name in _PROMOTING:
        yield _result_goes_in
    if name in refused_sizes.CHECKS:
        yield refused_sizes.CHECKS[name]


def _on_one_device(args: tuple[Any, ...]) -> None:
    places: dict[torch.device, None] = {}
    for arg in args:
        # A single number of the host goes with tensors of any device.
        if isinstance(arg, torch.Tensor) and (arg.dim() or arg.device.type != "cpu"):
            places[arg.device] = None
    if len(places) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(map(str, places))}!"
        )


def _indices_beside(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/TensorIndexing.h and native/IndexingUtils.h (2.13)."""
    tensor, indices = args[:2]
    for index in indices:
        if index is not None and index.device.type != "cpu" and index.device != tensor.device:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({tensor.device})"
            )


def _multiply(left: torch.Tensor, right: torch.Tensor) -> None:
    """Source: aten/src/ATen/native/LinearAlgebra.cpp, ``ADDMM_META`` (2.13)."""
    if left.dim() == right.dim() == 2 and left.shape[1] != right.shape[0]:
        sizes = f"({left.shape[0]}x{left.shape[1]} and {right.shape[0]}x{right.shape[1]})"
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied {sizes}")


def _lengths_on_host(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/PackedSequence.cpp, ``checkLongTensor`` (2.13)."""
    lengths = args[1]
    if lengths.device.type != "cpu" or lengths.dtype is not torch.int64:
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {lengths.device} {name_of(lengths.dtype)} tensor"
        )


def _statistics_as_wide(args: tuple[Any, ...]) -> None:
    """Weights are of the input's type, or of 32 bits beside an input of 16."""
    taken = args[0].dtype
    for place, name in ((1, "weight"), (2, "bias")):
        one = dense(args, place)
        wide = taken in _NARROW and one is not None and one.dtype is torch.float32
        if one is not None and one.dtype != taken and not wide:
            raise RuntimeError(
                f"Expected {name} to have type {name_of(taken)} but got {name_of(one.dtype)}"
            )


def _classes_are_numbers(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/cuda/NLLLoss.cu, Loss.cu (2.13)."""
    target = args[1]
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(
            f"expected target dtype to be Long or Byte, but got {name_of(target.dtype)}"
        )


def _narrow_ones_by_two(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/native/cuda/SpectralOps.cpp and CuFFTPlanCache.h (2.13)."""
    tensor, dims = args[:2]
    if tensor.dtype not in (torch.float16, torch.complex32):
        return
    for size in (tensor.shape[dim] for dim in dims):
        if size & (size - 1):
            raise RuntimeError(
                "cuFFT only supports dimensions whose sizes are powers of two when computing in "
                f"half precision, but got a signal size of[{size}]"
            )


def _result_goes_in(args: tuple[Any, ...]) -> None:
    """Source: aten/src/ATen/TensorIterator.cpp, ``compute_types`` (2.13)."""
    kind = torch.result_type(args[0], args[1])
    if not torch.can_cast(kind, args[0].dtype):
        raise RuntimeError(
            f"result type {name_of(kind)} can't be cast to the desired output type "
            f"{name_of(args[0].dtype)}"
        )


def check_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> None:
    """What is looked at before a kernel is chosen.

    Source: aten/src/ATen/native/transformers/attention.cpp, ``validate_sdpa_input`` (2.13).
    """
    named = {"query": query, "key": key, "value": value}
    if not query.dtype == key.dtype == value.dtype:
        q, k, v = (f"{name}.dtype: {c_name_of(one.dtype)}" for name, one in named.items())
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got "
            f"{q} {k} and {v} instead."
        )
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {c_name_of(mask.dtype)} and  query.dtype: "
            f"{c_name_of(query.dtype)} instead."
        )
    if query.shape[-1] != key.shape[-1]:
        raise RuntimeError(
            f"Expected query and key to have the same last dimension, but got {query.shape[-1]} "
            f"and {key.shape[-1]} instead."
        )


def check_lengths(key: torch.Tensor, value: torch.Tensor, *, padded: bool) -> None:
    """A fused kernel takes as many keys as values.

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp and cuda/attention.cu,
    ``_efficient_attention_forward`` (2.13); both as they end over PyTorch's CUDA code.

    Args:
        key: (B, H, Sk, D).
        value: (B, H, Sv, Dv).
        padded: the kernel is one that pads heads, not the memory-efficient one.
    """
    if key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            "Key and Value must have the same sequence length"
            if padded
            else "Expected key.size(1) == value.size(1) to be true, but got false.  (Could this "
            "error message be improved?  If so, please report an enhancement request to PyTorch.)"
        )


def check_recurrent(
    data: torch.Tensor, states: Iterable[torch.Tensor | None], params: Iterable[torch.Tensor]
) -> None:
    """What is looked at before cuDNN is asked.

    Source: aten/src/ATen/native/RNN.cpp, ``check_attributes`` (2.13).
    """
    for name, tensors in (("hidden", states), ("parameter", params)):
        for one in tensors:
            if one is not None and one.device != data.device:
                raise RuntimeError(
                    f"Input and {name} tensors are not at the same device, found input tensor at "
                    f"{data.device} and {name} tensor at {one.device}"
                )


def check_bias(query: torch.Tensor, bias: torch.Tensor | None) -> None:
    """What memory-efficient attention adds to scores is of their type.

    Source: aten/src/ATen/native/transformers/cuda/attention.cu (2.13).
    """
    if bias is not None and bias.dtype not in (torch.bool, query.dtype):
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
