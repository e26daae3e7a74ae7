"""flash-attn: what the host code of its compiled extension allocates.

Shapes: B batch, H heads, Hk key heads, Sq and Sk lengths, D head size, T tokens of all sequences;
q (B, Sq, H, D), or (T, H, D) where lengths vary. Source: csrc/flash_attn/flash_api.cpp (2.8.3),
``mha_fwd``, ``mha_varlen_fwd``, ``mha_bwd``, ``mha_varlen_bwd``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.kernels.attention.fused import flash_splits, padded_head
from memcalc.kernels.scratch import ceil_div, round_up
from memcalc.kernels.target import Target
from memcalc.workload.flash_attn.operators import NAMESPACES

__all__ = ["NAMESPACES", "Kernels"]
_ROWS = 128
_DTYPES = (torch.float16, torch.bfloat16)
_MOST = 256
"""Of a head's size."""


class Kernels:
    """What runs each of its operators on a GPU.

    Args:
        target: the GPU, by whose multiprocessors it divides its work.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[str, Callable[..., Any]] = {
            "_flash_attn_forward": self._forward,
            "_flash_attn_varlen_forward": self._varlen_forward,
            "_flash_attn_backward": self._backward,
            "_flash_attn_varlen_backward": self._varlen_backward,
        }

    def __call__(self, func: Any) -> Callable[..., Any] | None:
        """The function for an operator; ``None``: it is none that trains."""
        return self._known.get(func._schema.name.partition("::")[2])

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_left: int,
        window_right: int,
        softcap: float,
        alibi_slopes: Any,
        return_softmax: bool,
    ) -> tuple[torch.Tensor, ...]:
        self._check(q)
        q, k, v = map(_in_rows, (q, k, v))
        batch, queries, heads, _ = q.shape
        keys, kv_heads = k.shape[1:3]
        swapped = (
            queries == 1
            and heads > kv_heads
            and (window_left < 0 or window_left >= keys)
            and (window_right < 0 or window_right >= keys)
            and not dropout_p
            and alibi_slopes is None
        )
        if swapped:
            # The queries of a group stand for a sequence.
            queries, heads = heads // kv_heads, kv_heads
            q = q.reshape(batch, heads, queries, -1).transpose(1, 2)
        out = torch.empty_like(q)
        sums = q.new_empty(batch, heads, queries, dtype=torch.float32)
        seen = _probabilities(q, (batch, heads, queries, keys), return_softmax)
        held = self._parts(q, (batch, heads, queries, keys), dropout_p)
        random = q.new_empty(2, dtype=torch.int64)
        del held
        if swapped:
            out = out.transpose(1, 2).reshape(batch, 1, heads * queries, -1)
            sums = sums.reshape(batch, heads * queries, 1)
        return out, sums, seen, random

    def _varlen_forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        begins_q: torch.Tensor,
        begins_k: torch.Tensor,
        longest_q: int,
        longest_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_left: int = -1,
        window_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        return_softmax: bool = False,
        block_table: Any = None,
        *_: Any,
    ) -> tuple[torch.Tensor, ...]:
        self._check(q)
        q, k, v = map(_in_rows, (q, k, v))
        batch, heads, kv_heads = begins_q.numel() - 1, q.shape[1], k.shape[-2]
        swapped = (
            longest_q == 1
            and heads > kv_heads
            and max(window_left, window_right) < 0
            and not dropout_p
            and alibi_slopes is None
        )
        if swapped:
            longest_q, heads = heads // kv_heads, kv_heads
            grouped = q.reshape(batch, heads, longest_q, -1).transpose(1, 2)
            q = grouped.reshape(batch * longest_q, heads, -1)
        out = torch.empty_like(q)
        sums = q.new_empty(heads, q.shape[0], dtype=torch.float32)
        sizes = (batch, heads, longest_q, longest_k)
        seen = _probabilities(q, sizes, return_softmax)
        held = self._parts(q, sizes, dropout_p) if swapped else ()
        random = q.new_empty(2, dtype=torch.int64)
        del held
        if swapped:
            turned = out.reshape(batch, longest_q, heads, -1).transpose(1, 2)
            out = turned.reshape(batch, heads * longest_q, -1)
            sums = sums.reshape(heads * longest_q, batch)
        return out, sums, seen, random

    def _parts(
        self, q: torch.Tensor, sizes: tuple[int, int, int, int], dropout_p: float
    ) -> tuple[torch.Tensor, ...]:
        """Partial results of keys split over blocks (``set_params_splitkv``); none with dropout.

        Args:
            q: the queries.
            sizes: (B, H, Sq, Sk).
            dropout_p: probability.
        """
        batch, heads, queries, keys = sizes
        room = 2 * self._target.multiprocessors
        splits = flash_splits((batch, heads, queries, q.shape[-1]), keys, dropout_p, room)
        if splits == 1:
            return ()
        rows = (splits, batch, heads, queries)
        sums = q.new_empty(rows, dtype=torch.float32)
        return sums, q.new_empty((*rows, padded_head(q.shape[-1])), dtype=torch.float32)

    def _backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        sums: torch.Tensor,
        dq: torch.Tensor | None,
        dk: torch.Tensor | None,
        dv: torch.Tensor | None,
        *choices: Any,
        deterministic: bool | None = None,
        rng_state: Any = None,
    ) -> torch.Tensor:
        batch, queries, heads, _ = q.shape
        rows = (batch, round_up(queries, _ROWS), heads)
        repeats = choices[7] if deterministic is None else deterministic
        return self._gradients(
            (dout, q, k, v, out), (dq, dk, dv), (batch, heads, rows[1]), rows, batch, bool(repeats)
        )

    def _varlen_backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        sums: torch.Tensor,
        dq: torch.Tensor | None,
        dk: torch.Tensor | None,
        dv: torch.Tensor | None,
        begins_q: torch.Tensor,
        begins_k: torch.Tensor,
        longest_q: int,
        longest_k: int,
        *choices: Any,
        deterministic: bool | None = None,
        rng_state: Any = None,
    ) -> torch.Tensor:
        batch, (tokens, heads, _) = begins_q.numel() - 1, q.shape
        rows = (tokens + _ROWS * batch, heads)
        repeats = choices[7] if deterministic is None else deterministic
        return self._gradients(
            (dout, q, k, v, out), (dq, dk, dv), (heads, rows[0]), rows, batch, bool(repeats)
        )

    def _gradients(
        self,
        given: tuple[torch.Tensor, ...],
        made: tuple[torch.Tensor | None, ...],
        sums: tuple[int, ...],
        rows: tuple[int, ...],
        batch: int,
        repeats: bool,
    ) -> torch.Tensor:
        """What both kinds of backward take.

        Args:
            given: gradient of the output, q, k, v, output.
            made: gradients of q, k and v, where the caller made them.
            sums: shape of the sums of each row.
            rows: shape of the gradient of q that is summed up in fp32, without the head's size.
            batch: B.
            repeats: the sum is made in parts, always in one order.
        """
        self._check(given[1])
        _, q, k, v, _ = held = tuple(map(_in_rows, given))
        _, dk, dv = (
            torch.empty_like(like) if grad is None else grad
            for grad, like in zip(made, (q, k, v), strict=True)
        )
        heads, kv_heads = q.shape[-2], k.shape[-2]
        kept = q.new_empty(sums, dtype=torch.float32)
        wide = (*rows, padded_head(q.shape[-1]))
        if repeats:
            parts = ceil_div(self._target.multiprocessors, batch * heads)
            accumulated = q.new_zeros((parts, *wide), dtype=torch.float32)
        else:
            accumulated = q.new_empty(wide, dtype=torch.float32)
        if heads != kv_heads:
            # Those of each head, added up by groups.
            shape = (*k.shape[:-2], heads, k.shape[-1])
            expanded = [k.new_empty(shape) for _ in range(2)]
            for total, each in zip((dk, dv), expanded, strict=True):
                grouped = each.unflatten(-2, (kv_heads, heads // kv_heads))
                torch.sum(grouped, (-2,), out=total)
            del expanded
        del accumulated, held
        return kept

    def _check(self, q: torch.Tensor) -> None:
        """Refuse what the extension does, in its words."""
        if self._target.capability < (8, 0):
            raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
        if q.dtype not in _DTYPES:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if q.shape[-1] > _MOST:
            raise RuntimeError("FlashAttention forward only supports head dimension at most 256")


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _probabilities(q: torch.Tensor, sizes: tuple[int, int, int, int], wanted: bool) -> torch.Tensor:
    batch, heads, queries, keys = sizes
    shape = (batch, heads, round_up(queries, _ROWS), round_up(keys, _ROWS))
    return q.new_empty(shape if wanted else (0,))
