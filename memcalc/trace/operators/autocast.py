"""Autocast on the simulated device: CUDA's lists of operators and its cache of weight casts.

The key ``AutocastPrivateUse1`` has no kernels of its own. Which operators get one is asked of
PyTorch, where CUDA's are registered, those of packages among them (torchvision's), whose own code
runs where it is Python's; what each of PyTorch does is read in aten/src/ATen/autocast_mode.h and
autocast_mode.cpp (``cached_cast``) of PyTorch 2.11 and 2.13. One that neither has is left as it is
and said to be (``unread``).
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace import device
from memcalc.trace.torch_private.dispatch import (
    autocast_names,
    autocast_of_package,
    without_key,
)

HALVES = (torch.float16, torch.bfloat16)
"""Types of half precision, from which autocast goes up to fp32."""

LOWER_PRECISION = """
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum
    mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    _scaled_dot_product_flash_attention scaled_dot_product_attention
""".split()
FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
    group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
""".split()
FP32_OPTIONAL_DTYPE = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()
WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""".split()
_ELSEWHERE = re.compile("_?cudnn_|.*([dD]imname|names_)")
"""cuDNN's own operators, which no program calls, and those of named tensors."""

_KEY = "AutocastPrivateUse1"
_libraries: list[torch.library.Library] = []
_casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


_called_unread: dict[str, None] = {}


def install() -> None:
    """Register autocast for the simulated device, once per process."""
    if _libraries:
        return
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, _KEY)
    libraries: dict[str, torch.library.Library] = {}
    for full in sorted(autocast_names()):
        namespace, _, name = full.partition("::")
        library = libraries.setdefault(namespace, torch.library.Library(namespace, "IMPL"))
        op = _overload(namespace, name)
        if namespace != "aten":
            library.impl(name, _of_package(op), _KEY)
        elif not _ELSEWHERE.match(name):
            library.impl(name, _RULES.get(name, _unread)(op), _KEY)
    _libraries.extend((rest, *libraries.values()))
    _clear_with_pytorch()


def unread() -> tuple[str, ...]:
    """What to say of operators that ran and that PyTorch casts by a rule nobody read here."""
    return tuple(
        f"autocast of {name} is not known: it ran in its own type" for name in _called_unread
    )


def _overload(namespace: str, name: str) -> Any:
    packet_name, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet_name), overload or "default")


def _clear_with_pytorch() -> None:
    """Forget our casts when PyTorch forgets its own: at the end of the outermost autocast."""
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        _casts.clear()
        clear()

    torch.clear_autocast_cache = clear_both


def _without(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with without_key(_KEY):
        return func(*args, **kwargs)


def _lower(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device.SIMULATED)
        return _without(_call, op, dtype, args, kwargs)

    return kernel


def _fp32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _without(_call, op, torch.float32, args, kwargs)

    return kernel


_DTYPE_BY_PLACE = (torch.ops.aten.softmax.int, torch.ops.aten.log_softmax.int)


def _fp32_dtype(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        # C++ passes what it was given by place: cross_entropy asks for its input's own dtype.
        positional = op in _DTYPE_BY_PLACE and len(args) > 2
        given = args[2] if positional else kwargs.get("dtype")
        if given is None and _eligible(args[0]):
            kwargs = {**kwargs, "dtype": torch.float32}
            if op in _DTYPE_BY_PLACE:
                args = args[:2]
        return _without(op, *args, **kwargs)

    return kernel


def _norm(op: Any) -> Callable[..., Any]:
    """``norm.Scalar`` and ``norm.ScalarOpt_dim`` become the overloads that take a type."""
    dims = "dim" in op.name()
    typed = torch.ops.aten.norm.ScalarOpt_dim_dtype if dims else torch.ops.aten.norm.ScalarOpt_dtype

    def kernel(tensor: torch.Tensor, p: Any = 2, *dim_and_keepdim: Any) -> Any:
        if not _eligible(tensor):
            return _without(op, tensor, p, *dim_and_keepdim)
        rest = (*dim_and_keepdim, False)[:2] if dims else ()
        return _without(typed, tensor, p, *rest, dtype=torch.float32)

    return kernel


def _refused(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{op.name()} is unsafe to autocast: PyTorch refuses it inside torch.autocast, "
            "use binary_cross_entropy_with_logits"
        )

    return kernel


def _unread(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        _called_unread[op.name().removeprefix("aten::")] = None
        return _without(op, *args, **kwargs)

    return kernel


def _of_package(op: Any) -> Callable[..., Any]:
    kernel = autocast_of_package(op)
    return _unread(op) if kernel is None else functools.partial(_without, kernel)


def _widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtypes = {t.dtype for t in _tensors(args) if _eligible(t)}
        wide = torch.float32 in dtypes and len(dtypes) > 1
        if not wide:
            return _without(op, *args, **kwargs)
        return _without(_call, op, torch.float32, args, kwargs)

    return kernel


def _call(op: Any, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # C++ evaluates the casts of an argument list from the last to the first (GCC on x86-64), so
    # a linear layer casts its bias, then its weight, then its input.
    cast = [_cast(arg, dtype) for arg in reversed(args)]
    return op(*reversed(cast), **{key: _cast(arg, dtype) for key, arg in kwargs.items()})


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    found = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, list | tuple):
            found.extend(item for item in arg if isinstance(item, torch.Tensor))
    return found


def _eligible(arg: Any) -> bool:
    return (
        isinstance(arg, torch.Tensor)
        and arg.device.type == device.SIMULATED
        and arg.is_floating_point()
        and arg.dtype is not torch.float64
    )


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    if isinstance(arg, list | tuple):
        return type(arg)(_cast(item, dtype) for item in arg)
    if not _eligible(arg) or arg.dtype is dtype:
        return arg
    cacheable = (
        torch.is_autocast_cache_enabled()
        and dtype is torch.get_autocast_dtype(device.SIMULATED)
        and arg.dtype is torch.float32
        and arg.requires_grad
        and arg.is_leaf
        and not arg._is_view()
    )
    if not cacheable:
        return arg.to(dtype)
    found = _casts.get(id(arg))
    if found is not None and found[0]() is arg:
        return found[1]
    made = arg.to(dtype)
    _casts[id(arg)] = (weakref.ref(arg), made)
    return made


_RULES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    **dict.fromkeys(LOWER_PRECISION, _lower),
    **dict.fromkeys(FP32, _fp32),
    **dict.fromkeys(FP32_OPTIONAL_DTYPE, _fp32_dtype),
    **dict.fromkeys(("norm.Scalar", "norm.ScalarOpt_dim"), _norm),
    **dict.fromkeys(WIDEST, _widest),
    "binary_cross_entropy": _refused,
}
