"""Finds the nearest code of block-wise 8-bit quantization, by search or by table.

The table needs two look-ups instead of a binary search, and is exact too. n elements make
ceil(n / 256) blocks; the last block may be short.

Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (ICLR 2022), sections 1.3
and 2.1, figure 2.  The 256 values of the codes equal bitsandbytes 0.50.2
(``functional.create_dynamic_map``) bit for bit.  Scales and codes equal its exact (argmin) kernel;
its compiled CPU kernel takes a short cut near zero and differs there.
"""

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

BLOCK = 256  # elements that share one scale; bitsandbytes' optimizers since 0.44
DECADES = 7  # magnitudes 1e-7 .. 1, each with twice as many codes as the one below


def dynamic_map(*, signed: bool) -> Tensor:
    """Return the 256 values that 8-bit codes mean, ascending.

    Decade i covers [10^(i-7), 10^(i-6)) and is cut into 2^i equal cells (2^(i+1) without a
    sign); a code means its cell's middle.  Zero and 1.0 complete the table, so the signed
    map has no -1.0.

    Args:
        signed: True for a first moment, False for a second moment, which is never negative.

    Returns:
        float32 tensor of shape (256,), ascending, on the CPU.
    """
    return torch.tensor(_list_values(signed), dtype=torch.float32, device="cpu")


@cache
def _list_values(signed: bool) -> tuple[float, ...]:
    # Real numbers are needed here even while fake tensors are traced.
    with _disable_current_modes():
        values = [0.0, 1.0]
        for decade in range(DECADES):
            cells = 2 ** (decade if signed else decade + 1)
            edges = torch.linspace(0.1, 1.0, cells + 1, dtype=torch.float32, device="cpu")
            middles = 10.0 ** (decade - DECADES + 1) * ((edges[:-1] + edges[1:]) / 2.0)
            values += middles.tolist()
            if signed:
                values += (-middles).tolist()
    return tuple(sorted(values))


SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def count_blocks(n: int) -> int:
    """Return the number of quantization blocks (and scales) of n elements."""
    return -(-n // BLOCK)


def reciprocal_scales(absmax: Tensor) -> Tensor:
    """Return 1 / absmax per block, or 0 for a block that is too small to invert (below 1.2e-38)."""
    return torch.where(absmax < SMALLEST_NORMAL, 0.0, absmax.reciprocal())


def nearest_code(values: Tensor, qmap: Tensor, *, keep_nonzero: bool = False) -> Tensor:
    """Return the 8-bit code whose value is nearest to each value; a tie goes to the lower.

    Args:
        values: float32, any shape, within [-1, 1].
        qmap: float32 (256,), ascending.
        keep_nonzero: never give a positive value the code of 0.  For second moments, which
            are in a denominator: a root that vanished would make the next step huge.

    Returns:
        uint8 of the same shape.
    """
    above = torch.searchsorted(qmap, values).clamp_(max=255)
    below = (above - 1).clamp_(min=0)
    codes = torch.where(qmap[above] - values < values - qmap[below], above, below)
    if keep_nonzero:
        codes = torch.where((values > 0) & (qmap[codes] == 0), codes + 1, codes)
    return codes.to(torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTables:
    """The look-up tables of a code map on a device, made once per process.

    The upper 16 bits of a float32 name a bin of values.  Bins are finer than codes, so a bin holds
    at most one boundary between codes: a value at or above ``upper[code]`` has the next code.

    Attributes:
        low: int32 (65536,): by the upper 16 bits, the code at the bin's lower end.
        upper: float32 (256,): by code, the smallest value of the next code; the last is inf.
    """

    low: Tensor
    upper: Tensor


@lru_cache
def code_tables(device: torch.device, *, signed: bool) -> CodeTables:
    """Return the look-up tables of the signed or unsigned code map on a device."""
    qmap = dynamic_map(signed=signed)
    patterns = torch.arange(1 << 16, dtype=torch.int64)
    negative = patterns >= 1 << 15
    # A negative float's lower end has the larger magnitude: its lower 16 bits are ones.
    bits = (patterns << 16) | torch.where(negative, 0xFFFF, 0)
    bits = torch.where(negative, bits - (1 << 32), bits)
    ends = bits.to(torch.int32).view(torch.float32).nan_to_num(0.0).clamp(-1.0, 1.0)
    low = nearest_code(ends, qmap, keep_nonzero=not signed).to(torch.int32)
    upper = _find_boundaries(qmap, keep_nonzero=not signed)
    return CodeTables(low=low.to(device), upper=upper.to(device))


def _find_boundaries(qmap: Tensor, *, keep_nonzero: bool) -> Tensor:
    """Return the smallest float32 of each code except the first, found by bisection; then inf."""
    low, high = _to_ordinal(qmap[:-1]), _to_ordinal(qmap[1:])
    code = torch.arange(255)
    while bool((high - low > 1).any()):
        middle = (low + high) // 2
        above = nearest_code(_from_ordinal(middle), qmap, keep_nonzero=keep_nonzero) > code
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return torch.cat([_from_ordinal(high), torch.tensor([torch.inf])])


def _to_ordinal(values: Tensor) -> Tensor:
    """Return the rank of each float32 in ascending order, as int64; both zeros are 0."""
    bits = values.view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _from_ordinal(ordinals: Tensor) -> Tensor:
    bits = torch.where(ordinals < 0, -ordinals - (1 << 31), ordinals)
    return bits.to(torch.int32).view(torch.float32)
