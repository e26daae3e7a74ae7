"""Stochastic rounding to bf16 by a hash of (seed, step, tensor, element): no generator state.

A bf16 keeps 8 significant bits.  Rounded to nearest, v <- 0.999 v + 0.001 g^2 cannot move once
0.001 |g^2 - v| is under half a unit in the last place of v, so v freezes far from its limit.
Rounded up with a probability equal to the fraction that is cut off, v is right on average.

The randomness is a function of the step and the element's index, so a resumed run repeats it
bit for bit, and every device computes the same.

Source of the mixing constants: Chris Wellons, hash-prospector, "lowbias32" as improved by
TheIronBorn (public domain); of the combination: splitmix64 (Steele et al. 2014).
"""

import torch
from torch import Tensor

WEYL = 0x9E3779B9  # 2^32 divided by the golden ratio: spreads neighboring indices
MIX1 = 0x21F0AAAD
MIX2 = 0x735A2D97
MIX3 = 0x85EBCA6B
_MASK64 = (1 << 64) - 1


def signed32(value: int) -> int:
    """Return the int32 with the same low 32 bits."""
    return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def stream_key(seed: int, step: int, ordinal: int) -> int:
    """Return an int32 hash of the seed, the step and the parameter's position."""
    state = 0
    for word in (seed, step, ordinal):
        state = (state + (word & _MASK64) + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return signed32(state)


def weyl_indices(count: int, device: torch.device) -> Tensor:
    """Return the int32 products index * WEYL for the indices 0 .. count - 1."""
    indices = torch.arange(count, dtype=torch.int32, device=device)
    return indices.mul_(signed32(WEYL))


def random_bits(weyl: Tensor, start: int, key: int, *, out: Tensor, scratch: Tensor) -> Tensor:
    """Return 32 pseudo-random bits per element, a hash of key and element index.

    Args:
        weyl: int32 (n,) from ``weyl_indices``.
        start: Index of the first element.
        key: From ``stream_key``.
        out: int32 (n,), overwritten with the result.
        scratch: int32 (n,), overwritten.
    """
    torch.add(weyl, signed32(start * WEYL + key), out=out)
    for shift, multiplier in ((16, MIX1), (15, MIX2), (15, None)):
        _xor_shift(out, shift, scratch)
        if multiplier is not None:
            out.mul_(signed32(multiplier))
    return out


def remix_(bits: Tensor, scratch: Tensor) -> Tensor:
    """Replace random bits in place, for a second rounding of the same elements."""
    bits.mul_(signed32(MIX3))
    return _xor_shift(bits, 13, scratch)


def low_half(bits: Tensor, *, out: Tensor) -> Tensor:
    """Return the low 16 bits, as 0 .. 65535."""
    return torch.bitwise_and(bits, 0xFFFF, out=out)


def high_half(bits: Tensor, *, out: Tensor) -> Tensor:
    """Return the high 16 bits, as 0 .. 65535."""
    return torch.bitwise_right_shift(bits, 16, out=out).bitwise_and_(0xFFFF)


def round_stochastic_(values: Tensor, noise: Tensor) -> Tensor:
    """Round float32 in place to bf16 values, up with the probability of the fraction cut off.

    Adding 16 random bits to the pattern carries into bit 16 just that often; the rest is cut.
    Infinities stay.  A NaN stays unless its low 16 bits are nearly all ones; a NaN made on the CPU
    or from a bf16 has no such bits.

    Args:
        values: float32 (n,).
        noise: int32 (n,) in 0 .. 65535.
    """
    values.view(torch.int32).add_(noise).bitwise_and_(-65536)
    return values


def _xor_shift(bits: Tensor, shift: int, scratch: Tensor) -> Tensor:
    # torch shifts int32 arithmetically: the mask drops the copied sign bits.
    torch.bitwise_right_shift(bits, shift, out=scratch)
    return bits.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
