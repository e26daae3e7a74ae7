"""Finding the nearest code by table: two look-ups instead of a binary search, and still exact.

The upper 16 bits of a float32 name a bin of values.  Bins are finer than codes, so a bin holds
at most one boundary between codes: ``low[bin]`` is the code at the bin's lower end, and a value
at or above ``upper[code]`` belongs to the next code.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from memcalc.optim.blockwise import nearest_code
from memcalc.optim.codes import dynamic_map


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTables:
    """The tables for one code map on one device; made once per process, no optimizer's state.

    Attributes:
        low: int32 (65536,): by the upper 16 bits, the code at the bin's lower end.
        upper: float32 (256,): by code, the smallest value of the next code; the last is inf.
    """

    low: Tensor
    upper: Tensor


@lru_cache
def code_tables(device: torch.device, *, signed: bool) -> CodeTables:
    """Make the tables of the signed map, or of the unsigned one, which keeps non-zeros."""
    qmap = dynamic_map(signed=signed)
    patterns = torch.arange(1 << 16, dtype=torch.int64)
    negative = patterns >= 1 << 15
    # A negative float's lower end has the larger magnitude: its lower 16 bits are ones.
    bits = (patterns << 16) | torch.where(negative, 0xFFFF, 0)
    bits = torch.where(negative, bits - (1 << 32), bits)
    ends = bits.to(torch.int32).view(torch.float32).nan_to_num(0.0).clamp(-1.0, 1.0)
    low = nearest_code(ends, qmap, keep_nonzero=not signed).to(torch.int32)
    upper = _boundaries(qmap, keep_nonzero=not signed)
    return CodeTables(low=low.to(device), upper=upper.to(device))


def _boundaries(qmap: Tensor, *, keep_nonzero: bool) -> Tensor:
    """Bisect, over the ordered float32s, for the smallest value of each code but the first."""
    low, high = _ordinal(qmap[:-1]), _ordinal(qmap[1:])
    code = torch.arange(255)
    while bool((high - low > 1).any()):
        middle = (low + high) // 2
        above = nearest_code(_from_ordinal(middle), qmap, keep_nonzero=keep_nonzero) > code
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return torch.cat([_from_ordinal(high), torch.tensor([torch.inf])])


def _ordinal(values: Tensor) -> Tensor:
    """Number the float32s in ascending order, as int64; both zeros are 0."""
    bits = values.view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _from_ordinal(ordinals: Tensor) -> Tensor:
    bits = torch.where(ordinals < 0, -ordinals - (1 << 31), ordinals)
    return bits.to(torch.int32).view(torch.float32)
