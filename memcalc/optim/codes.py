"""The two dynamic code maps: which 256 numbers in [-1, 1] an 8-bit state can hold.

Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (ICLR 2022), section 1.3
and figure 2, after Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (2016).
The numbers equal those of bitsandbytes 0.50.2 (``functional.create_dynamic_map``) bit for bit.
"""

from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

BLOCK = 256  # elements that share one scale; bitsandbytes' optimizers since 0.44
DECADES = 7  # magnitudes 1e-7 .. 1, each with twice as many codes as the one below


def dynamic_map(*, signed: bool) -> Tensor:
    """Make the sorted table of the 256 values that a code can stand for.

    Decade i covers [10^(i-7), 10^(i-6)) and is cut into 2^i equal cells (2^(i+1) without a
    sign); a code stands for its cell's middle.  Zero and 1.0 complete the table, so the signed
    map has no -1.0.

    Args:
        signed: True for a first moment, False for a second moment, which is never negative.

    Returns:
        float32 tensor of shape (256,), ascending, on the CPU.
    """
    return torch.tensor(_values(signed), dtype=torch.float32, device="cpu")


@cache
def _values(signed: bool) -> tuple[float, ...]:
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
