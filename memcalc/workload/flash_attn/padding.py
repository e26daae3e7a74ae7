"""Tokens without their padding, and back, as ``flash_attn.bert_padding`` (2.8.3) does it.

Shapes: padded (batch, length, ...), without padding (tokens, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.count, rest = rows.shape[0], rows.shape[1:]
        flat = rows.reshape(rows.shape[0], -1)
        return torch.gather(flat, 0, _everywhere(indices, flat)).reshape(-1, *rest)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (indices,) = ctx.saved_tensors
        rest = grads[0].shape[1:]
        flat = grads[0].reshape(grads[0].shape[0], -1)
        rows = torch.zeros([ctx.count, flat.shape[1]], device=flat.device, dtype=flat.dtype)
        rows.scatter_(0, _everywhere(indices, flat), flat)
        return rows.reshape(ctx.count, *rest), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        rows = torch.zeros(count, *values.shape[1:], device=values.device, dtype=values.dtype)
        rows[indices] = values
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (indices,) = ctx.saved_tensors
        return grads[0][indices], None, None


def _everywhere(indices: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    return indices[:, None].expand(-1, flat.shape[1])


index_first_axis: Callable[..., torch.Tensor] = _Gather.apply
index_put_first_axis: Callable[..., torch.Tensor] = _Put.apply


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    """Tokens, their places, where each sequence begins, the longest, and tokens that are used."""
    masks = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = masks.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(masks.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    begins = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, begins, longest, used


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """Tokens in a batch again, with zeros for padding."""
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.view(batch, seqlen, *rows.shape[1:])
