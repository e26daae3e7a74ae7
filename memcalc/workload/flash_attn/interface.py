"""The functions that programs call, over the extension's operators.

Shapes: q (batch, q_len, heads, head_dim), k and v (batch, k_len, kv_heads, head_dim); of lengths
that vary all tokens in one row, (tokens, heads, head_dim). Packed, k and v (or all three) stand
beside each other in a dimension before the heads. What is saved for backward, and what is allocated
in which order, follows flash_attn_interface.py (2.8.3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from memcalc.workload.flash_attn.operators import operators

_ALIGNMENT = 8
_NO_CACHE = (
    "flash_attn_with_kvcache is not simulated: generate with attn_implementation='sdpa', or with "
    "transformers' own generate(), which does not call it"
)


class _Call(NamedTuple):
    """What a call is told beside its tensors."""

    dropout_p: float
    softmax_scale: float
    causal: bool
    window: tuple[int, int]
    softcap: float
    alibi_slopes: torch.Tensor | None
    deterministic: bool
    lengths: tuple[Any, ...]
    """Where each sequence begins among queries and keys, and the longest; empty: all are equal."""
    block_table: torch.Tensor | None
    probabilities: bool
    graded: bool

    @property
    def longest(self) -> tuple[int, ...]:
        """Transformers gives numbers of the GPU at times, which stay there."""
        return tuple(int(length) for length in self.lengths[-2:])

    @property
    def choices(self) -> tuple[Any, ...]:
        return (
            self.dropout_p,
            self.softmax_scale,
            self.causal,
            *self.window,
            self.softcap,
            self.alibi_slopes,
        )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *packs: torch.Tensor) -> Any:
        graded = call.graded and any(pack.requires_grad for pack in packs)
        ctx.counts = counts = _COUNTS[len(packs)]
        q, k, v = (
            part
            for pack, count in zip(packs, counts, strict=True)
            for part in (pack.detach().unbind(-3) if count > 1 else (pack,))
        )
        width = q.shape[-1]
        q, k, v = (_padded(part) for part in (q, k, v))
        of, asked = operators(), call.probabilities and call.dropout_p > 0
        if call.lengths:
            out, lse, probabilities, random = of._flash_attn_varlen_forward(
                q, k, v, *call.lengths[:2], *call.longest, *call.choices, asked, call.block_table
            )
        else:
            out, lse, probabilities, random = of._flash_attn_forward(q, k, v, *call.choices, asked)
        if graded:
            ctx.save_for_backward(q, k, v, out, lse, random, *call.lengths[:2])
            # Beside what is saved, a node keeps what it holds as long as its graph lives.
            ctx.call = call._replace(lengths=call.lengths[2:])
        shown = out[..., :width]
        return (shown, lse, probabilities) if call.probabilities else shown

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, out, lse, random, *begins = ctx.saved_tensors
        call, of, width = ctx.call, operators(), grads[0].shape[-1]
        packs, at = [], 0
        for count in ctx.counts:
            like = (q, k, v)[at]
            packs.append(torch.empty_like(like) if count == 1 else _pack(like, count))
            at += count
        dq, dk, dv = (
            part
            for pack, count in zip(packs, ctx.counts, strict=True)
            for part in (pack.unbind(-3) if count > 1 else (pack,))
        )
        given = (_padded(grads[0]), q, k, v, out, lse, dq, dk, dv)
        run = of._flash_attn_varlen_backward if call.lengths else of._flash_attn_backward
        run(*given, *begins, *call.longest, *call.choices, call.deterministic, random)
        return None, *(pack[..., :width] for pack in packs)


_COUNTS = {3: (1, 1, 1), 2: (1, 2), 1: (3,)}
"""How many tensors each argument holds, by how many arguments there are."""


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.shape[-1] % _ALIGNMENT
    return F.pad(tensor, (0, missing)) if missing else tensor


def _pack(like: torch.Tensor, count: int) -> torch.Tensor:
    shape = (*like.shape[:-2], count, *like.shape[-2:])
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _attend(
    packs: tuple[torch.Tensor, ...],
    lengths: tuple[Any, ...],
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    call = _Call(
        dropout_p,
        packs[0].shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        causal,
        (window_size[0], window_size[1]),
        softcap,
        alibi_slopes,
        deterministic,
        lengths,
        block_table,
        return_attn_probs,
        torch.is_grad_enabled(),
    )
    return _Attention.apply(call, *packs)  # type: ignore[no-untyped-call]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of sequences of one length."""
    return _attend(
        (q, k, v),
        (),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same with keys and values beside each other."""
    return _attend((q, kv), (), *args, **kwargs)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same with all three beside each other."""
    return _attend((qkv,), (), *args, **kwargs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """Attention of sequences of several lengths, one after the other in one row."""
    return _attend(
        (q, k, v),
        (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        block_table,
    )


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The same with keys and values beside each other."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _attend((q, kv), lengths, *args, **kwargs)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *args: Any, **kwargs: Any
) -> Any:
    """The same with all three beside each other."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _attend((qkv,), lengths, *args, **kwargs)


def flash_attn_with_kvcache(*args: Any, **kwargs: Any) -> Any:
    """Is there to be imported.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(_NO_CACHE)
