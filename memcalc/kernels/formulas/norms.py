"""What norms take, by the name of the kernel: of groups, of batches, and of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcalc.kernels import norms, reduction
from memcalc.kernels.scratch import Allocations, Formula, Scratch, behind, ceil_div, later, nested
from memcalc.kernels.target import Target

_RAGGED_SINCE, _PLACE = (2, 15), 8
"""PyTorch whose chunks are counted tensor by tensor, and the bytes that say where one begins."""
_IN_TWO_STEPS_SINCE, _MANY_ROWS = (2, 8), 65536
"""PyTorch that sums gradients of a layer norm's weights in two steps, above so many rows."""
_MOST_BLOCKS, _WARP = 32768, 32
_Reduced = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int, int]
"""What ``reduction.taken`` is told, but for the target."""


def _group_norm(target: Target, moments: int, scale: int, point: bool, copied: int) -> Scratch:
    """``moments``: bytes of each moment in fp32, for 16-bit inputs; ``scale``: of a channel's.

    ``point``: a channel has one number, which is scaled as others are from 2.15 on; ``copied``:
    bytes of inputs that lie across.
    Source: aten/src/ATen/native/cuda/group_norm_kernel.cu; moments are widened in 2.13, not in
    2.11 (2.12 was not looked at); 2.15 recorded.
    """
    widened = (moments, moments) if moments and target.torch >= (2, 13) else ()
    scaled = (scale, scale) if scale and (not point or target.torch >= (2, 15)) else ()
    return Scratch(after=nested(copied, *widened, *scaled))


def _group_norm_backward(
    target: Target, each: int, group: int, scaled: bool, point: bool, copies: tuple[int, ...]
) -> Scratch:
    """Two sums for each channel, two numbers for each group, and the channels' scale.

    Source: aten/src/ATen/native/cuda/group_norm_kernel.cu (2.11 and 2.13; 2.14 recorded).
    """
    if point and target.torch == (2, 14):
        return behind(copies, nested(group, group))
    if not scaled:
        return behind(copies, nested(each, each, group, group))
    return behind(copies, (each, each, group, group, each, ~3, ~2, ~4, ~1, ~0))


def _batch_norm(
    target: Target, own: tuple[Any, ...], last: tuple[int, int, bool] | tuple[()] = ()
) -> Scratch:
    """``own``: of PyTorch's kernel; ``last``: rows, channels, fp16, where channels lie last."""
    if not target.cudnn:
        return _own_batch_norm(target, *own)
    return Scratch(after=_norm(target, norms.forward(*last[:2], half=last[2])) if last else ())


def _own_batch_norm(
    target: Target,
    staged: tuple[int, ...],
    copied: int,
    spread: _Reduced | tuple[()],
    ones: tuple[int, ...],
) -> Scratch:
    """``staged``: bytes that blocks hand on; ``spread``: a reduction, of ``copied`` bytes if any.

    ``ones``: bytes of the numbers that stand for a weight and a bias.
    """
    sums = nested(*staged)
    if spread:
        taken = reduction.taken(*spread, target)
        sums = (copied, *later(taken, 1), ~0) if copied else taken
    first = sum(word > 0 for word in sums)
    return Scratch(after=(*sums, *later(nested(*ones), first)))


def _batch_norm_backward(
    target: Target, copied: int, last: tuple[int, int] | tuple[()] = ()
) -> Scratch:
    """``copied``: bytes of a gradient that lies otherwise than the input, held to the end."""
    if not target.cudnn:
        return Scratch()
    taken = _norm(target, norms.backward(*last)) if last else ()
    return behind((copied,) if copied else (), taken)


def _layer_norm_backward(
    target: Target, rows: int, width: int, size: int, weights: int, inputs: int, grad: int
) -> Scratch:
    """Gradients of weights over many rows: parts of each are summed in a second step.

    ``width``: numbers of a weight, of ``size`` bytes each; ``weights``: how many of them have
    gradients; ``inputs`` and ``grad``: bytes of copies. A sum takes the place of what was made for
    the result, which has as many bytes.
    Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, ``LaunchGammaBetaBackwardCUDAKernel``
    (2.13; not in 2.7 or before).
    """
    before: Allocations = (inputs,) if inputs else ()
    words: Allocations = (grad,) if grad else ()
    made = len(before) + len(words)
    if weights and _in_two_steps(target, rows, width):
        across = ceil_div(width, _WARP)
        parts = min(_MOST_BLOCKS // across, ceil_div(rows, _WARP))
        staged = reduction.taken((parts, width), (width, 1), (0,), max(4, size), size, size, target)
        words += (parts * width * size,) * weights
        for number in range(weights):
            first = made + weights + number * (1 + sum(word > 0 for word in staged))
            words = (*words, width * size, *later(staged, first + 1), ~first)
        words += tuple(~(made + number) for number in reversed(range(weights)))
    return Scratch(before, (*words, *(~number for number in reversed(range(made)))))


def _in_two_steps(target: Target, rows: int, width: int) -> bool:
    few = width // _WARP < target.multiprocessors // 2
    return rows > _MANY_ROWS and few and target.torch >= _IN_TWO_STEPS_SINCE


def _norm(target: Target, size: int) -> Allocations:
    """Before 7.0 cuDNN has no kernel for channels that lie last in fp32 (and it is Pascal)."""
    return nested(size) if target.capability >= (7, 0) else ()


def _foreach_norm(
    target: Target, count: int, most: int, chunks: int, partial: int, empty: int, size: int
) -> Scratch:
    """For every tensor as many chunks as the largest has; from 2.15 on its own, and where they are.

    A tensor without elements gets its norm, a zero of this size, beside the one that was made for
    it. Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu, ``foreach_tensor_norm_cuda`` (2.11
    and 2.13); seen with 2.14 and 2.15.
    """
    if target.torch < _RAGGED_SINCE:
        partials = (count * most * partial,) if most else ()
        return behind(partials, nested(*[size] * empty))
    return Scratch((_PLACE * (count + 1), chunks * partial), (~1, ~0))


FORMULAS: Mapping[str, Formula] = {
    "group_norm": _group_norm,
    "group_norm_backward": _group_norm_backward,
    "layer_norm_backward": _layer_norm_backward,
    "batch_norm": _batch_norm,
    "own_batch_norm": _own_batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "foreach_norm": _foreach_norm,
}
