"""Scaled dot-product attention on the simulated device: the target GPU's choice of kernel.

PyTorch's own composite code would ask a device-specific stub that the simulated device lacks and
fall back to the math kernel, so it is replaced for this device (its dispatch key with autograd)
by the same steps with the target's choice: mask conversion, padding,
then the very operator CUDA calls, whose autograd formula saves what CUDA saves.
Source of the steps: aten/src/ATen/native/transformers/attention.cpp, PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from msgspec.structs import replace

from memcalc.kernels.attention.call import AttentionCall, Backend
from memcalc.kernels.attention.choice import choose
from memcalc.kernels.target import Target
from memcalc.trace import device
from memcalc.trace.operators import deterministic, mismatched, release
from memcalc.trace.operators.autocast import HALVES

_aten = torch.ops.aten
_libraries: list[torch.library.Library] = []
run: Callable[..., torch.Tensor] = _aten.scaled_dot_product_attention
"""Attention as it was installed, for whoever calls it where no dispatch key leads to it."""
_NUMBERS = {Backend.MATH: 0, Backend.FLASH: 1, Backend.EFFICIENT: 2, Backend.CUDNN: 3}
"""``SDPBackend`` (aten/src/ATen/native/transformers/sdp_utils_cpp.h, 2.13)."""
_NO_KERNEL = (
    "No viable backend for scaled_dot_product_attention was found. This is likely due to turning "
    "off both the math kernel and the fused kernels."
)
_ALIGNMENT = 8
_FIRST_ALIGNMENT = 16
"""Of a mask's rows, in PyTorch 2.1."""


Chooser = Callable[[AttentionCall, Target, frozenset[Backend] | None], Backend]


def install(
    target: Target, allowed: frozenset[Backend] | None = None, choose: Chooser = choose
) -> None:
    """Route attention on the simulated device by this target's rules, until the next call."""
    _libraries.clear()
    library = torch.library.Library("aten", "IMPL")

    chosen = _choosing(target, allowed, choose)

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        mismatched.check_attention(query, key, value, attn_mask)
        backend = chosen(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if backend is None:
            raise RuntimeError("No available kernel. Aborting execution.")
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        if backend is not Backend.MATH:
            mismatched.check_lengths(key, value, padded=backend is not Backend.EFFICIENT)
        if backend is Backend.EFFICIENT:
            mismatched.check_bias(query, attn_mask)
            # It frees the converted mask where it pads it; the others hold it to their end.
            return _efficient(query, key, value, attn_mask, options)
        mask = attn_mask
        if release.is_since(2, 1):
            # Before, masks are those of the math kernel alone, which converts them itself.
            mask = _float_mask(attn_mask, query.dtype)
        if backend is Backend.FLASH:
            return _flash(query, key, value, options)
        if backend is Backend.CUDNN:
            return _cudnn(query, key, value, mask, options)
        return _math(query, key, value, mask, {**options, "grouped": enable_gqa})

    with_autograd, without = device.keys()
    library.impl("scaled_dot_product_attention", attention, with_autograd)
    for place in (with_autograd, without):
        library.impl("_fused_sdp_choice", _told(chosen), place)
    _libraries.append(library)
    global run
    run = attention


def _choosing(
    target: Target, allowed: frozenset[Backend] | None, choose: Chooser
) -> Callable[..., Backend | None]:
    """What tells the kernel that a call takes; ``None``: the program leaves none on."""

    def chosen(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float,
        causal: bool,
        grouped: bool,
    ) -> Backend | None:
        if query.dim() != 4:
            return Backend.MATH
        call = described(query, key, value, mask)
        call = replace(call, dropout=dropout, causal=causal, grouped=grouped)
        enabled = allowed if allowed is not None else _enabled()
        if lies_across(query, key, value, mask) or _is_spread(query, key, value):
            enabled &= {Backend.MATH}
        backend = choose(call, target, enabled)
        return backend if allowed is not None or backend in enabled else None

    return chosen


def _told(chosen: Callable[..., Backend | None]) -> Callable[..., int]:
    """``torch._fused_sdp_choice``."""

    def choice(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> int:
        backend = chosen(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if backend is None:
            raise RuntimeError(_NO_KERNEL)
        return _NUMBERS[backend]

    return choice


def _enabled() -> frozenset[Backend]:
    """What the program leaves on (``torch.nn.attention.sdpa_kernel``); by default all."""
    cuda = torch.backends.cuda
    switches = {
        Backend.FLASH: cuda.flash_sdp_enabled(),
        Backend.EFFICIENT: cuda.mem_efficient_sdp_enabled(),
        Backend.MATH: cuda.math_sdp_enabled(),
        # Source: sdp_utils.cpp, ``check_cudnn_deterministic`` (2.13).
        Backend.CUDNN: cuda.cudnn_sdp_enabled() and not deterministic.is_strict(),
    }
    return frozenset(backend for backend, on in switches.items() if on)


def uninstall() -> None:
    """Route attention as PyTorch does."""
    _libraries.clear()


def lies_across(*given: torch.Tensor | None) -> bool:
    """Numbers of a head, or of a mask's row, do not lie side by side: no fused kernel takes it.

    Source: sdp_utils_cpp.h, ``check_last_dim_stride_equals_1_dense`` (2.13).
    """
    *tensors, mask = given
    heads = any(t is not None and t.stride(-1) != 1 and t.shape[-1] != 1 for t in tensors)
    return heads or (mask is not None and mask.stride(-1) != 1)


def _is_spread(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Some stand for several samples or heads: the math kernel alone expands them.

    Source: sdp_utils_cpp.h, ``check_batch_size_and_num_heads_dense`` (2.13).
    """
    samples = query.shape[0] == key.shape[0] == value.shape[0]
    return not samples or key.shape[1] != value.shape[1]


def described(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> AttentionCall:
    """What the choice of a kernel asks of tensors, shaped as ``AttentionCall`` says."""
    return AttentionCall(
        batch=query.shape[0] if query.dim() > 3 else 1,
        heads=query.shape[-3] if query.dim() > 3 else 1,
        kv_heads=key.shape[-3] if key.dim() > 3 else 1,
        q_len=query.shape[-2],
        k_len=key.shape[-2],
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
        dtype=str(query.dtype).removeprefix("torch."),
        mask=mask is not None,
        mask_needs_grad=mask is not None and mask.requires_grad,
        needs_grad=_needs_grad(query, key, value),
    )


def _needs_grad(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _float_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask becomes 0 where it allows and minus infinity where it does not.

    Source: attention.cpp, ``convert_boolean_attn_mask``; recorded with 2.4.1, 2.5.1 and 2.6.0.
    """
    if mask is None or mask.dtype is not torch.bool:
        return mask
    if not release.is_since(2, 5):
        filled = torch.zeros_like(mask, dtype=dtype)
        return filled.masked_fill_(mask.logical_not(), float("-inf"))
    forbid = torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device)
    if not release.is_since(2, 6):
        # What is forbidden is chosen, not what is allowed.
        return torch.where(mask.logical_not(), forbid, 0.0)
    allow = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask, allow, forbid)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> torch.Tensor:
    width = query.shape[-1]
    scale = options["scale"] if options["scale"] is not None else width**-0.5
    query, key, value = (_pad_last(tensor) for tensor in (query, key, value))
    out: torch.Tensor = _aten._scaled_dot_product_flash_attention(
        query, key, value, options["dropout_p"], options["is_causal"], False, scale=scale
    )[0]
    return out if out.shape[-1] == width else out[..., :width]


def _pad_last(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.shape[-1] % _ALIGNMENT
    return F.pad(tensor, (0, missing)) if missing else tensor


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> torch.Tensor:
    mask = _float_mask(mask, query.dtype)
    if mask is not None and not release.is_since(2, 2):
        mask = _mask_of_each_head(mask, query, key)
    elif mask is not None:
        if any(stride % _ALIGNMENT for stride in mask.stride()[:-1]):
            width = mask.shape[-1]
            mask = F.pad(mask, (0, _ALIGNMENT - width % _ALIGNMENT))[..., :width]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    out: torch.Tensor = _aten._scaled_dot_product_efficient_attention(
        query,
        key,
        value,
        mask,
        _needs_grad(query, key, value),
        options["dropout_p"],
        options["is_causal"],
        scale=options["scale"],
    )[0]
    return out


def _mask_of_each_head(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """PyTorch 2.1 spreads a mask over texts and heads first, and copies what then lies otherwise.

    Source: attention.cpp, ``preprocess_mask`` (2.1; recorded with 2.1.2).
    """
    mask = mask.expand(*query.shape[:3], key.shape[2])
    missing = -key.shape[2] % _FIRST_ALIGNMENT
    if missing:
        return F.pad(mask, (0, missing))[..., : key.shape[2]]
    return mask.contiguous()


def _cudnn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> torch.Tensor:
    out: torch.Tensor = _aten._scaled_dot_product_cudnn_attention(
        query,
        key,
        value,
        mask,
        _needs_grad(query, key, value),
        options["dropout_p"],
        options["is_causal"],
        False,
        scale=options["scale"],
    )[0]
    return out


def _math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> torch.Tensor:
    """``_scaled_dot_product_attention_math``; its C++ adds masks in place, but not to fake tensors.

    Before 2.5 it computes in the type that it is given, and has no rows of zeros for what is masked
    wholly (recorded with 2.0.1 to 2.6.0).

    Shapes: query (..., L, E), key and value (..., S, E).
    """
    dtype = query.dtype
    # What C++ holds until it returns is held here under names that are not used again.
    exact = [query, key, value]
    reduced = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    if dtype in HALVES and release.is_since(2, 5) and not reduced:
        exact = [tensor.float() for tensor in exact]
    scale = options["scale"] if options["scale"] is not None else query.shape[-1] ** -0.5
    root = abs(scale) ** 0.5
    scaled = exact[0] * (-root if scale < 0 else root)
    if options["is_causal"]:
        mask = _lower(query.shape[-2], key.shape[-2], query.device)
    mask = _float_mask(mask, scaled.dtype)
    keys, values = exact[1:]
    if options["grouped"] and query.shape[-3] != key.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        keys, values = keys.repeat_interleave(times, -3), values.repeat_interleave(times, -3)
    weights = scaled @ (keys.transpose(-2, -1) * root)
    if mask is not None:
        weights.add_(mask)
    softmax = _aten._safe_softmax if release.is_since(2, 5) else torch.softmax
    weights = softmax(weights, -1)
    if options["dropout_p"] > 0:
        weights = torch.dropout(weights, options["dropout_p"], True)
    # Returned beside the output, and dropped by the caller; C++ makes it first.
    beside = weights.to(dtype)
    out: torch.Tensor = (weights @ values).to(dtype)
    del beside
    return out


def _lower(rows: int, columns: int, device: Any) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=torch.bool, device=device).tril()
