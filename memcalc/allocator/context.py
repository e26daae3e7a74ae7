"""What a CUDA process holds outside PyTorch's allocator: its context and loaded kernels.

NVIDIA publishes no formula. Two public readings of a bare context (llama.cpp pull request 23604:
555 MiB with 188 multiprocessors, 107 MiB with 34) lie on 3.0 MiB per multiprocessor; kernels
that PyTorch, cuBLAS and cuDNN load on first use add 60 to 250 MiB. No figure of this module has
been compared with a GPU by memcalc yet.
"""

from __future__ import annotations

from memcalc.records import Span
from memcalc.units import MIB

_BARE_PER_PROCESSOR = (2.85, 3.0, 3.15)
_MODULES = (60, 150, 250)
_SOURCE = (
    "3.0 MiB per multiprocessor (two public readings) and 60 to 250 MiB of loaded kernels; "
    "not measured by memcalc"
)
_SMALLEST, _LARGEST = 30, 192
"""Multiprocessors of the smallest and largest GPUs in the table."""


def context_span(multiprocessors: int | None) -> Span:
    """Bytes outside the allocator; without a GPU named, the limits over all known GPUs."""
    low, high = multiprocessors or _SMALLEST, multiprocessors or _LARGEST
    likely = None
    if multiprocessors is not None:
        likely = _total(multiprocessors, 1)
    return Span(low=_total(low, 0), likely=likely, high=_total(high, 2), source=_SOURCE)


def _total(processors: int, which: int) -> int:
    return int((processors * _BARE_PER_PROCESSOR[which] + _MODULES[which]) * MIB)
