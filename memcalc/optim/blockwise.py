"""Block-wise 8-bit quantization, written plainly: the reference that faster code is held to.

Shapes: n elements, in ceil(n / 256) blocks; the last block may be short.

Source: Dettmers et al. 2022, section 2.1.  Scales and codes equal bitsandbytes 0.50.2's exact
(argmin) kernel; its compiled CPU kernel takes a short cut near zero and differs there.
"""

import torch
from torch import Tensor

from memcalc.optim.codes import BLOCK

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def blocks_of(n: int) -> int:
    """Count the blocks, that is the scales, of n elements."""
    return -(-n // BLOCK)


def by_block(values: Tensor) -> Tensor:
    """Pad a flat tensor with zeros to whole blocks: (n,) to (ceil(n / 256), 256)."""
    padding = blocks_of(values.numel()) * BLOCK - values.numel()
    return torch.nn.functional.pad(values, (0, padding)).view(-1, BLOCK)


def reciprocal_scales(absmax: Tensor) -> Tensor:
    """Invert the scales; a block too small to invert (below 1.2e-38) is stored as zeros."""
    return torch.where(absmax < SMALLEST_NORMAL, 0.0, absmax.reciprocal())


def nearest_code(values: Tensor, qmap: Tensor, *, keep_nonzero: bool = False) -> Tensor:
    """Find the code of the map's value nearest to each value; a tie goes to the lower code.

    Args:
        values: float32, any shape, within [-1, 1].
        qmap: float32 (256,), ascending.
        keep_nonzero: never give a positive value the code of 0.  For second moments, which
            stand in a denominator: a root that vanished would make the next step huge.

    Returns:
        uint8 of the same shape.
    """
    above = torch.searchsorted(qmap, values).clamp_(max=255)
    below = (above - 1).clamp_(min=0)
    codes = torch.where(qmap[above] - values < values - qmap[below], above, below)
    if keep_nonzero:
        codes = torch.where((values > 0) & (qmap[codes] == 0), codes + 1, codes)
    return codes.to(torch.uint8)


def quantize(values: Tensor, qmap: Tensor, *, keep_nonzero: bool = False) -> tuple[Tensor, Tensor]:
    """Quantize a flat float32 tensor block by block.

    Args:
        values: float32 (n,).
        qmap: float32 (256,), ascending.
        keep_nonzero: see ``nearest_code``.

    Returns:
        The codes, uint8 (n,), and the scales (each block's largest magnitude), float32
        (ceil(n / 256),).  A NaN makes its block's scale NaN, so it is not hidden.
    """
    blocks = by_block(values)
    absmax = blocks.abs().amax(dim=1)
    scaled = blocks * reciprocal_scales(absmax)[:, None]
    codes = nearest_code(scaled, qmap, keep_nonzero=keep_nonzero)
    return codes.view(-1)[: values.numel()], absmax


def dequantize(codes: Tensor, absmax: Tensor, qmap: Tensor) -> Tensor:
    """Undo ``quantize`` up to its rounding.

    Args:
        codes: uint8 (n,).
        absmax: float32 (ceil(n / 256),).
        qmap: float32 (256,).

    Returns:
        float32 (n,).
    """
    return (by_block(qmap[codes.long()]) * absmax[:, None]).view(-1)[: codes.numel()]
