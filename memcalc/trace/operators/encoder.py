"""The fused layers that ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` evaluate with.

In evaluation without gradients they call one operator for a whole layer, which takes its tensors in
its own order. Sources: aten/src/ATen/native/transformers/ transformer.cpp
(``transformer_encoder_layer_forward``), attention.cpp and cuda/attention.cu
(``native_multi_head_attention_cuda``); the order was recorded with PyTorch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from memcalc.trace.operators import attention as scaled

_aten = torch.ops.aten
_ALIGNED = 8
"""Heads of a multiple of this many numbers go to the fused kernels, where nothing is masked."""


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_native_multi_head_attention`` of one tensor with itself; query (B, T, D)."""
    batch, length, _ = query.shape
    each = embed_dim // num_head
    if mask is None and not need_weights and each % _ALIGNED == 0:
        packed = F.linear(query, qkv_weight, qkv_bias)
        heads = [
            part.view(batch, length, num_head, each).transpose(1, 2) for part in packed.chunk(3, -1)
        ]
        mixed = scaled.run(*heads).transpose(1, 2).reshape(batch, length, embed_dim)
        out = F.linear(mixed, proj_weight, proj_bias)
        del mixed
        return out, query.new_empty(0)
    packed = F.linear(query, qkv_weight)
    # Biased and scaled in one room for all three.
    split = query.new_empty((3, batch, num_head, length, each))
    del packed
    scores = _scores(split)
    if mask is not None:
        chosen = mask if mask.dtype == torch.bool else mask.to(torch.bool)
        scores = torch.empty_like(scores)
        del chosen
    weights = query.new_empty(0)
    if not need_weights:
        del scores
    # What the scores choose is written over the queries.
    turned = query.new_empty((batch * length, embed_dim))
    out = F.linear(turned, proj_weight, proj_bias).view(batch, length, embed_dim)
    del turned
    if need_weights:
        weights = scores.sum(1) if average_attn_weights else scores
        del scores
    return out, weights


def _scores(split: torch.Tensor) -> torch.Tensor:
    _, batch, heads, length, each = split.shape
    query, key = (split[part].view(batch * heads, length, each) for part in range(2))
    return torch.bmm(query, key.transpose(1, 2)).view(batch, heads, length, length)


def layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """``_transformer_encoder_layer_fwd``."""

    def first(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attended(x: torch.Tensor) -> torch.Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return attention(x, x, x, embed_dim, num_heads, *projections, mask, False)[0]

    def widened(x: torch.Tensor) -> torch.Tensor:
        # The activation is a part of the product.
        wide = torch.addmm(ffn_bias_1, x.view(-1, embed_dim), ffn_weight_1.t())
        return torch.addmm(ffn_bias_2, wide, ffn_weight_2.t()).view(src.shape)

    x = first(src) if norm_first else src
    x = attended(x)
    x = x.add_(src)
    if not norm_first:
        x = first(x)
    before = x
    if norm_first:
        x = second(x)
    x = widened(x)
    x = x.add_(before)
    return x if norm_first else second(x)


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten._native_multi_head_attention.default: (attention, ""),
    _aten._transformer_encoder_layer_fwd.default: (layer, ""),
}
