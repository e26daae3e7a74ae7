"""Fused attention as PyTorch before 2.2 has it, where its tensors are others than today's.

Flash attention of version 1 takes rows of all texts in one matrix; memory-efficient attention of
2.0 makes gradients of what was one tensor in one tensor.

Shapes: query (B, H, Sq, D), key and value (B, H, Sk, D); inside (B * S, H, D).
Sources: aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu,
``_scaled_dot_product_flash_attention_cuda`` and its backward, and flash_attn/fmha_api.cpp,
``mha_fwd`` and ``mha_bwd`` (2.0 and 2.1); held against the allocations of 2.0.1 and 2.1.2.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.attention.fused import WORKSPACE_SINCE
from memcalc.kernels.attention.older import SECOND_FLASH_SINCE
from memcalc.kernels.scratch import round_up
from memcalc.trace.operators import release
from memcalc.trace.torch_private.tensors import storage_key

_aten = torch.ops.aten
_ROWS = 16
"""Sums of a softmax are kept for a multiple of so many rows."""


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """One row after the other, of all texts: a copy where they do not lie so."""
    batch, heads, length, width = tensor.shape
    return tensor.transpose(1, 2).reshape(batch * length, heads, width)


def _by_text(rows: torch.Tensor, batch: int) -> torch.Tensor:
    length = rows.shape[0] // batch
    return rows.view(batch, length, *rows.shape[1:]).transpose(1, 2)


def _sums(query: torch.Tensor) -> torch.Tensor:
    batch, heads, length, _ = query.shape
    shape = batch, heads, round_up(length, _ROWS)
    return torch.empty(shape, dtype=torch.float32, device=query.device)


def _accumulator(rows: torch.Tensor, keys: int) -> torch.Tensor | None:
    """In fp32, where there are more keys than one block takes."""
    block = 256 if rows.shape[-1] <= 64 else 128
    if keys <= block:
        return None
    return torch.empty(rows.shape, dtype=torch.float32, device=rows.device)


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
    **more: Any,
) -> Any:
    if release.is_since(*SECOND_FLASH_SINCE):
        return NotImplemented
    batch, q_len, k_len = query.shape[0], query.shape[2], key.shape[2]
    ends = [torch.empty(batch + 1, dtype=torch.int32, device=query.device) for _ in range(2)]
    rows = [_in_rows(tensor) for tensor in (query, key, value)]
    out = torch.empty_like(rows[0])
    accumulated = _accumulator(rows[0], k_len)
    sums = _sums(query)
    del accumulated, rows
    # What dropout draws from stays on the host.
    none = torch.empty(0, device=query.device)
    return _by_text(out, batch), sums, *ends, q_len, k_len, none, none, none


def _backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    *rest: Any,
    **more: Any,
) -> Any:
    if release.is_since(*SECOND_FLASH_SINCE):
        return NotImplemented
    rows = [_in_rows(tensor) for tensor in (query, key, value)]
    dense = [_in_rows(tensor).contiguous() for tensor in (grad, out)]
    grads = [torch.empty_like(one) for one in rows]
    sums = _sums(query)
    accumulated = _accumulator(rows[0], key.shape[2])
    del accumulated, sums, dense, rows
    return tuple(_by_text(one, query.shape[0]) for one in grads)


def _efficient_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
    **more: Any,
) -> Any:
    """Source: attention_backward.cu, ``_efficient_attention_backward`` (2.0)."""
    if release.is_since(*WORKSPACE_SINCE):
        return NotImplemented
    dense = grad.transpose(1, 2).contiguous()
    grads = _in_one(query, key, value) or [_like(tensor) for tensor in (query, key, value)]
    # They are summed by tensors in fp32: gradient times output, and its sums in two orders.
    exact = query.dtype is torch.float32
    product = torch.empty_like(dense) if exact else None
    rows = _row_sums(query)
    turned = _row_sums(query) if exact and 1 not in query.shape[1:3] else None
    del rows, product, turned, dense
    return *grads, None


def _row_sums(query: torch.Tensor) -> torch.Tensor:
    return torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)


def _in_one(*given: torch.Tensor) -> list[torch.Tensor] | None:
    """One tensor for all gradients, where queries, keys and values are parts of one."""
    query, key, value = given
    whole = {storage_key(tensor) for tensor in given}
    if len(whole) > 1 or query.shape != key.shape or key.shape != value.shape:
        return None
    batch, heads, length, width = query.shape
    room = query.new_empty(batch, length, 3, heads, width)
    return [room.select(2, place).transpose(1, 2) for place in range(3)]


def _like(tensor: torch.Tensor) -> torch.Tensor:
    batch, heads, length, width = tensor.shape
    return tensor.new_empty(batch, length, heads, width).transpose(1, 2)


OVERRIDES: dict[Any, Any] = {
    _aten._scaled_dot_product_flash_attention.default: (_forward, ""),
    _aten._scaled_dot_product_flash_attention_backward.default: (_backward, ""),
    _aten._scaled_dot_product_efficient_attention_backward.default: (_efficient_backward, ""),
}
