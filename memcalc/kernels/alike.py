"""What a convolution takes that nobody recorded: within the limits of those most like it.

An engine of cuDNN mostly keeps its inputs and outputs once more, in another layout, so what
recorded convolutions took is compared as a share of these operands (configs/convolutions).
The smallest, the median and the largest share of the nearest ones of the same layout make the
limits. Of every recorded convolution held against all others but those of its own sizes, 95 % lie
inside (tests/kernels/test_alike.py).

Another version of cuDNN may choose an engine that takes nothing (implicit GEMM, cuDNN's API
reference, ``cudnnConvolutionFwdAlgo_t``): there the smallest is none. cuDNN 8, which PyTorch before
2.4 brings, took more than those of 9 do: of 656 that 8.5 was asked for on 6.1 and 7.5, 46 lay above
their limits, the largest by Winograd's transforms, and on 8.0 and 8.6 it took 128 MiB for some
small ones, as 9.1 seems to do. There the largest is at least that (``_of_older``); how many lie
inside then was not counted.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.kernels import convolution, cudnn
from memcalc.kernels.cudnn_planning import by_kind, made_of
from memcalc.kernels.scratch import round_up
from memcalc.kernels.target import Target

NEAREST = 16
"""Recorded convolutions that are looked at: with 8 there are 92 % inside, with 32 98 %, in limits
twice as wide."""
KERNEL, GROUPS, STRIDE, BYTES = 2.0, 3.0, 1.0, 0.5
"""How far apart another kernel, groups or none, strides or none and twice the bytes are; twice the
channels are 1."""

_ALIGNED = 1 << 10
"""What aligns the copies to one another."""
_ROW = (4, 8, 8)
"""Channels that engines lay out together, by type: 16 bytes."""


_NINE = (2, 4)
"""The first PyTorch whose cuDNN is 9, by its wheels' metadata."""
_WINOGRAD = 36 / 16
"""Numbers of a transformed tile of 6 x 6 for each of the 4 x 4 that it makes, which
``CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED`` holds in 32 bits. Source: Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, section 4.1; asked of cuDNN 8.5, 576.56 MiB for
operands of 256.14."""
_WORKSPACE = 128 << 20
"""What cuDNN 8.5 took for some convolutions on 8.0 and 8.6 whose operands are less: 134,217,728.
With 9.1 a ResNet-18 on 8.9 reserved 126 MiB more than it does with any that was asked
(evidence/published/ksolver-torchvision-4090.json)."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a workspace that is not known exactly."""

    least: int
    likely: int
    most: int


class Kind(msgspec.Struct, frozen=True):
    """What of a convolution decides how like another it is, whatever its batch."""

    text: str
    kernel: tuple[int, ...]
    grouped: bool
    strided: bool
    channels: tuple[float, float]
    """Powers of two of input and output channels."""
    sample: int
    """Bytes of a sample's input and output, with channels in whole rows."""
    weight: int
    """Bytes of the weight, likewise."""

    def operands(self, batch: int) -> int:
        """Bytes of input, weight and output."""
        return batch * self.sample + self.weight

    def place(self, batch: int) -> tuple[float, ...]:
        """Numbers of which two are as far apart as they differ, all told."""
        size = math.log2(self.operands(batch))
        return (BYTES * size, GROUPS * self.grouped, STRIDE * self.strided, *self.channels)


class Known(msgspec.Struct, frozen=True):
    """Recorded convolutions as columns, which numpy compares at once; N of them."""

    texts: Any
    """(N,) problems but for their batches."""
    kernels: Any
    """(N, 2), or (N, 3) of volumes."""
    places: Any
    """(N, 5): what differs by degrees (``Kind.place``)."""
    shares: Any
    """(N, 3): what each direction takes of the operands."""

    def near(self, kind: Kind, batch: int, direction: int) -> list[float]:
        """Shares of those most like a kind, none of them of its own sizes."""
        import numpy as np

        others = self.texts != kind.text
        apart = np.abs(self.places[others] - kind.place(batch)).sum(axis=1)
        apart += KERNEL * (self.kernels[others] != kind.kernel).any(axis=1)
        shares = self.shares[others, direction]
        order = np.lexsort((shares, apart))[:NEAREST]
        return [float(share) for share in shares[order]]


@functools.cache
def limits(direction: int, problem: convolution.Problem | None, target: Target) -> Limits | None:
    """Between what a workspace lies that ``convolution.workspace`` does not know.

    Args:
        direction: a ``convolution.Direction``.
        problem: as in ``convolution.workspace``.
        target: the GPU and the PyTorch.

    Returns:
        ``None``: not a convolution of one or two dimensions, so nothing like it was recorded.
    """
    if problem is None:
        return None
    version = convolution.nearest(target.torch, target.capability)
    chosen = replace(target, torch=version, cudnn_benchmark=False)
    known = _planned(direction, problem, chosen)
    found = _near(direction, problem, chosen)
    if known is not None:
        found = Limits(least=min(found.least, known), likely=known, most=max(found.most, known))
    if target.cudnn_benchmark:
        # Which engine is the fastest is seen on the GPU only: it may be any of them.
        tried = cudnn.workspaces(direction, problem, chosen) or (0, found.most)
        found = replace(found, least=min(tried), most=max(*tried, found.likely))
    elif version != target.torch or target.cudnn_deterministic:
        others = [
            _planned(direction, problem, replace(chosen, torch=torch))
            for torch in convolution.versions(target.capability)
        ]
        # Another cuDNN may plan as any that was asked.
        found = replace(found, least=0, most=max(found.most, *(other or 0 for other in others)))
    if target.torch < convolution.versions(target.capability)[0]:
        found = replace(found, most=max(found.most, _of_older(problem, target)))
    # What takes a byte has a place in the trace.
    return replace(found, likely=max(found.likely, 1), most=max(found.most, 1))


def _planned(direction: int, problem: convolution.Problem, target: Target) -> int | None:
    """What is known of a target; where nothing is of deterministic engines, of any."""
    known = convolution.workspace(direction, problem, target)
    if known is None and target.cudnn_deterministic:
        known = convolution.workspace(
            direction, problem, replace(target, cudnn_deterministic=False)
        )
    return known


def _of_older(problem: convolution.Problem, target: Target) -> int:
    """The most that an older cuDNN may take where those that were asked take less."""
    (batch, *image), weight, moves, groups, dtype = problem[:5]
    fixed = _WORKSPACE if target.capability >= (8, 0) else 0
    if target.torch >= _NINE or max(weight[2:]) == 1 or max(by_kind(moves)[0]) > 1:
        return fixed
    wide = 1 if dtype == 0 else 2
    operands = _kind(image, weight, moves, groups, dtype).operands(batch)
    return max(fixed, math.ceil(_WINOGRAD * wide * operands) + _ALIGNED)


def _near(direction: int, problem: convolution.Problem, target: Target) -> Limits:
    """Between what the recorded ones most like it lie."""
    (batch, *image), *rest = problem[:5]
    kind = _kind(image, *rest)
    operands = kind.operands(batch)
    known = _known(
        target.torch, target.capability, problem[4], len(image) - 1, last=len(problem) > 5
    )
    shares = known.near(kind, batch, direction)
    most = math.ceil(max(*shares, 1.0) * operands) + _ALIGNED
    least, likely = min(shares), statistics.median(shares)
    return Limits(least=int(least * operands), likely=int(likely * operands), most=most)


def _kind(image: Any, weight: Any, moves: Any, groups: int, dtype: int) -> Kind:
    """Of a sample's (channels, (depth,) height, width) and the rest of a problem."""
    output = made_of(image[1:], weight[2:], moves)
    stride, *_ = by_kind(moves)
    element, row = (4 if dtype == 0 else 2), _ROW[dtype]
    into, out = round_up(image[0], row), round_up(weight[0], row)
    inside = round_up(weight[1], row) if groups == 1 else weight[1]
    return Kind(
        convolution.text((image, weight, moves, groups, dtype)),
        tuple(weight[2:]),
        groups > 1,
        max(stride) > 1,
        (math.log2(image[0]), math.log2(weight[0])),
        element * (into * math.prod(image[1:]) + out * math.prod(output)),
        element * out * inside * math.prod(weight[2:]),
    )


@functools.cache
def _known(
    torch: tuple[int, int], capability: tuple[int, int], dtype: int, axes: int, *, last: bool
) -> Known:
    """Recorded ones of a type and layout and of as many axes, as a GPU has or as all others have.

    Args:
        torch: whose cuDNN it is.
        capability: of the GPU.
        dtype: an index of ``convolution.DTYPES``.
        axes: of an image, or of a volume.
        last: channels lie last.
    """
    import numpy as np

    own, every = (capability,), tuple(convolution.capabilities())
    # bfloat16 on a GPU that has none is emulated: those of float16 are the nearest. No volume was
    # recorded with its channels last.
    ways = ((own, dtype, last), (own, 1, last), (every, dtype, last), (every, dtype, False))
    found: list[tuple[Kind, int, list[int]]] = []
    for way in ways:
        found = _recorded(*way, torch, axes)
        if len(found) >= NEAREST:
            break
    return Known(
        texts=np.array([kind.text for kind, *_ in found]),
        kernels=np.array([kind.kernel for kind, *_ in found]),
        places=np.array([kind.place(batch) for kind, batch, _ in found]),
        shares=np.array(
            [[of / kind.operands(batch) for of in taken] for kind, batch, taken in found]
        ),
    )


def _recorded(
    capabilities: tuple[tuple[int, int], ...],
    dtype: int,
    last: bool,
    torch: tuple[int, int],
    axes: int,
) -> list[tuple[Kind, int, list[int]]]:
    found = []
    for capability in capabilities:
        for text, by_batch in convolution.recorded(capability, torch).items():
            image, *rest = json.loads(text)
            if rest[3] == dtype and (len(rest) > 4) == last and len(image) == 1 + axes:
                kind = _kind(image, *rest[:4])
                found += [(kind, int(batch), of) for batch, of in by_batch.items()]
    return found
