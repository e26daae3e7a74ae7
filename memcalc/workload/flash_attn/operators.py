"""The four operators of flash-attn's extension that train; who traces them says what they take.

Arguments are in the order of ``flash_attn_interface.py`` (2.8.3), whose operators have the same
names in the namespace ``flash_attn``.
"""

from __future__ import annotations

from typing import Any

import torch

NAMESPACES = ("memcalc_flash_attn", "flash_attn")
"""Of these operators, and of the package's own where it is installed."""
_CHOICES = (
    "float dropout_p, float softmax_scale, bool causal, int window_left, int window_right, "
    "float softcap, Tensor? alibi_slopes"
)
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_BACKWARD = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq, "
    "Tensor(b!)? dk, Tensor(c!)? dv"
)
_SCHEMAS = (
    f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {_CHOICES}, bool return_softmax)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, {_LENGTHS}, {_CHOICES}, "
    "bool return_softmax, Tensor? block_table) -> (Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_backward({_BACKWARD}, {_CHOICES}, bool deterministic, Tensor? rng_state)"
    " -> Tensor",
    f"_flash_attn_varlen_backward({_BACKWARD}, {_LENGTHS}, {_CHOICES}, bool deterministic, "
    "Tensor? rng_state) -> Tensor",
)
_library: list[torch.library.Library] = []


def operators() -> Any:
    """Their namespace."""
    if not _library:
        library = torch.library.Library(NAMESPACES[0], "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _library.append(library)
    return getattr(torch.ops, NAMESPACES[0])
