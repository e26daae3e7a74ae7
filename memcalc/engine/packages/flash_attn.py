"""flash-attn's functions over PyTorch's own build of the same kernel, where flash-attn is missing.

PyTorch builds the kernel's host code (``flash_api.cpp``), so what a call allocates inside is the
same; of packed calls the cached blocks may differ. What is around it is read in flash-attn 2.8.3
(``flash_attn_interface.py``, ``bert_padding.py``). Nothing is computed on a simulated GPU: layouts
that PyTorch would copy are handed on as contiguous ones of the same memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple

import torch
from torch.nn import functional

__version__ = "2.8.3"
_forward, _backward = (
    torch.ops.aten._flash_attention_forward,
    torch.ops.aten._flash_attention_backward,
)
_MULTIPLE = 8
"""Elements that the width of a head is padded to a multiple of."""


class _Call(NamedTuple):
    """Arguments of a call beside its tensors."""

    begins: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    """Where sequences begin among the rows of queries and keys; None: all are equally long."""
    longest: tuple[int, int] = (0, 0)
    dropout: float = 0.0
    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    deterministic: bool = False
    with_softmax: bool = False

    def shared(self) -> dict[str, Any]:
        """Return the keyword arguments that the forward and the backward kernel take."""
        if self.window == (-1, -1):
            return {"scale": self.scale}  # PyTorch before 2.5 knows no window.
        window = {"window_size_left": self.window[0], "window_size_right": self.window[1]}
        return {"scale": self.scale, **window}


class _Attention(torch.autograd.Function):
    """Attention over queries, keys and values, of which some are packed in one tensor."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *packs: torch.Tensor) -> Any:
        """Return attention's output, and its softmax if requested."""
        width = packs[0].shape[-1]
        query, key, value = (_pad(_rows(one.detach())) for one in _split_packs(packs))
        scale = call.scale if call.scale is not None else width**-0.5
        call = call._replace(scale=scale)
        out, softmax, state, _, mask = _forward(
            *(query, key, value, *call.begins, *call.longest, call.dropout, call.causal),
            *(call.with_softmax and call.dropout > 0,),
            **call.shared(),
        )
        ctx.save_for_backward(query, key, value, out, softmax, state)
        ctx.call, ctx.packs = call, len(packs)
        if call.with_softmax:
            return out[..., :width], softmax, mask
        return out[..., :width]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of query, key and value, packed as they were given."""
        query, key, value, out, softmax, state = ctx.saved_tensors
        call, gradient = ctx.call, gradients[0]
        width = gradient.shape[-1]
        with _set_deterministic(call.deterministic):
            found = _backward(
                *(_dense(_rows(_pad(gradient))), query, key, value, _dense(out), softmax),
                *(*call.begins, *call.longest, call.dropout, call.causal, state, state),
                **call.shared(),
            )
        if ctx.packs < 3:
            # The kernel writes into slices of one tensor, of as many bytes.
            shape = (*key.shape[:-2], 4 - ctx.packs, *key.shape[-2:])
            found = list(found[: ctx.packs - 1])
            found.append(key.new_empty(shape))
        return (None, *(one[..., :width] for one in found))


def _split_packs(packs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    *whole, last = packs
    parts = 3 - len(whole)
    return (*whole, *(last.select(-3, one) for one in range(parts))) if parts > 1 else packs


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose last dimension is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _pad(tensor: torch.Tensor) -> torch.Tensor:
    """Pad the width of the heads to a multiple of eight."""
    lacking = -tensor.shape[-1] % _MULTIPLE
    return functional.pad(tensor, [0, lacking]) if lacking else tensor


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of the same memory, which flash-attn does not copy."""
    if tensor.is_contiguous():
        return tensor
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides, 0)


@contextlib.contextmanager
def _set_deterministic(asked: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(asked, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def _attend(
    packs: tuple[torch.Tensor, ...],
    begins: tuple[torch.Tensor | None, torch.Tensor | None],
    longest: tuple[int, int] | None,
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
    """Run attention by PyTorch's build of the kernel, with flash-attn's options."""
    if block_table is not None:
        raise NotImplementedError(
            "a paged cache (block_table) is not simulated without flash-attn: install flash-attn."
        )
    query, key, _ = _split_packs(packs)
    longest = longest or (query.shape[1], key.shape[1])
    window = int(window_size[0]), int(window_size[1])
    if alibi_slopes is not None and window == (-1, -1):
        # PyTorch's build has no slopes. The kernel lays single queries out anew unless there are
        # some, or a window.
        window = longest[1] - 1, -1
    call = _Call(
        begins=begins,
        longest=longest,
        dropout=dropout_p,
        scale=softmax_scale,
        causal=causal,
        window=window,
        deterministic=deterministic,
        with_softmax=return_attn_probs,
    )
    return _Attention.apply(call, *packs)


_OPTIONS = list(signature(_attend).parameters.values())[3:]


def _make_function(packs: str, begins: str = "", longest: str = "") -> Callable[..., Any]:
    """Make a function with the signature of one of flash-attn's.

    Args:
        packs: names of its tensors of shape (batch, length, heads, width), some in one.
        begins: names of what says where sequences begin that lie one behind the other.
        longest: names of their largest lengths.
    """
    names = f"{packs} {begins} {longest}".split()
    first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    # transformers looks for options in the signature.
    shape = Signature([*first, *_OPTIONS])

    def attend(*args: Any, **kwargs: Any) -> Any:
        given = shape.bind(*args, **kwargs).arguments
        tensors = tuple(given.pop(name) for name in packs.split())
        starts = [given.pop(name) for name in begins.split()] or [None]
        lengths = [int(given.pop(name)) for name in longest.split()]
        ends = (lengths[0], lengths[-1]) if lengths else None
        return _attend(tensors, (starts[0], starts[-1]), ends, **given)

    attend.__signature__ = shape  # type: ignore[attr-defined]
    return attend


_OF_BOTH = {"begins": "cu_seqlens_q cu_seqlens_k", "longest": "max_seqlen_q max_seqlen_k"}
flash_attn_func = _make_function("q k v")
flash_attn_kvpacked_func = _make_function("q kv")
flash_attn_qkvpacked_func = _make_function("qkv")
flash_attn_varlen_func = _make_function("q k v", **_OF_BOTH)
flash_attn_varlen_kvpacked_func = _make_function("q kv", **_OF_BOTH)
flash_attn_varlen_qkvpacked_func = _make_function("qkv", "cu_seqlens", "max_seqlen")


def flash_attn_with_kvcache(*_: Any, **__: Any) -> Any:
    """Raise NotImplementedError: what it allocates for a cache is not known here."""
    raise NotImplementedError(
        "flash_attn_with_kvcache is not simulated without flash-attn: install flash-attn."
    )


class _IndexFirstAxis(torch.autograd.Function):
    """Rows of a tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return the rows at the indices."""
        ctx.save_for_backward(indices)
        ctx.rows = tensor.shape[0]
        flat = tensor.flatten(1)
        return flat.gather(0, _repeat_columns(indices, flat)).reshape(-1, *tensor.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradient of the tensor."""
        (indices,), gradient = ctx.saved_tensors, gradients[0]
        flat = gradient.flatten(1)
        found = flat.new_zeros(ctx.rows, flat.shape[1])
        found.scatter_(0, _repeat_columns(indices, flat), flat)
        return found.reshape(ctx.rows, *gradient.shape[1:]), None


def _repeat_columns(indices: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    return indices[:, None].expand(-1, flat.shape[1])


index_first_axis = _IndexFirstAxis.apply


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ``rows`` rows: the given ones at the indices, zeros elsewhere."""
    found = values.new_zeros(rows, *values.shape[1:])
    found[indices] = values
    return found


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    """Pack the rows that a mask keeps; also return their indices, and sequences' begins."""
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    begins = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    kept = index_first_axis(hidden_states.flatten(0, 1), indices)
    return kept, indices, begins, longest, used


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """Put packed rows back into a batch at their indices, with zeros between."""
    found = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return found.unflatten(0, (batch, seqlen))  # type: ignore[no-any-return]
