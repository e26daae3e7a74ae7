"""Draws, searches and products of three, as CUDA works them out in steps.

Sources: aten/src/ATen/native/ Distributions.cpp, Linear.cpp, TensorCompare.cpp, cuda/ Randperm.cu,
MultinomialKernel.cu, Sorting.cpp, and TensorAdvancedIndexing.cpp (2.13).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from memcalc.trace.operators import release

_aten = torch.ops.aten


def _multinomial(
    weights: torch.Tensor, count: int, replacement: bool = False, **_: Any
) -> torch.Tensor:
    """(*, classes) -> (*, count). Each draw at once: the largest of weights over random numbers."""
    drawn = weights.new_empty((*weights.shape[:-1], count), dtype=torch.long)
    if replacement and count > 1:
        _cumulated(weights)
        return drawn
    highest, lowest = weights.max(), weights.min()
    above, below = highest < math.inf, lowest >= 0
    valid = above & below
    del below, above
    empty = _without_weight(weights)
    chances = torch.empty_like(weights)
    if count > 1:
        # Values in a tensor of their own; the places go where they belong.
        values = weights.new_empty(drawn.shape)
        _aten.topk.values(chances, count, values=values, indices=drawn)
        del values
    del chances, empty, valid, lowest, highest
    return drawn


def _without_weight(weights: torch.Tensor) -> torch.Tensor:
    """Some row weighs nothing."""
    totals = weights.sum(-1)
    none = totals == 0
    found = none.any() if none.dim() else none
    del none, totals
    _ = ~found
    return found


def _cumulated(weights: torch.Tensor) -> None:
    """Weights, their shares and the shares' running sums.

    From 2.15 on weights are read where they lie (recorded).
    """
    given = None if release.is_since(2, 15) else torch.empty_like(weights)
    shares, sums = torch.empty_like(weights), torch.empty_like(weights)
    _aten.cumsum.out(shares, -1, out=sums)
    del sums, shares, given


def _normal(mean: torch.Tensor, std: float = 1, **_: Any) -> torch.Tensor:
    """The numbers are drawn, then the means are added to them in another tensor."""
    drawn = torch.empty_like(mean)
    out = torch.empty_like(mean)
    del drawn
    return out


def _normal_of_spread(mean: Any, std: torch.Tensor, **_: Any) -> torch.Tensor:
    """The smallest spread is looked at once there is room for the numbers."""
    shape = torch.broadcast_shapes(mean.shape, std.shape) if isinstance(mean, torch.Tensor) else ()
    out = std.new_empty(shape or std.shape)
    if std.numel():
        smallest = std.min()
        positive = smallest >= 0
        del positive, smallest
    return out


def _dirichlet(alpha: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Source: aten/src/ATen/native/cuda/Distributions.cpp, ``_sample_dirichlet_cuda`` (2.13)."""
    out = torch.empty_like(alpha)
    out.sum(-1, keepdim=True)
    return out


def _count_nonzero(tensor: torch.Tensor, dim: Any = None) -> torch.Tensor:
    found = tensor if tensor.dtype is torch.bool else tensor != 0
    return found.sum() if dim is None else found.sum(dim)


_FEW = 10.0
_POWER = 0.145


def _isin(
    elements: torch.Tensor,
    tests: torch.Tensor,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Any:
    """Few are compared with each; for many, everything is sorted."""
    out = torch.empty_like(elements, dtype=torch.bool)
    if tests.numel() < _FEW * elements.numel() ** _POWER:
        equal = elements.unsqueeze(-1) == tests.flatten()
        equal.any(-1)
        return out
    ordered, back = elements.flatten(), None
    among = tests.flatten()
    if not assume_unique:
        ordered, back = _aten._unique.default(elements, False, True)
        among, _ = _aten._unique.default(tests, False, False)
        del _
    every = torch.cat((ordered, among))
    del among, ordered
    values, order = every.sort(stable=True)
    doubled = torch.empty_like(values, dtype=torch.bool)
    following = values[1:] == values[:-1]
    del following
    mask = torch.empty_like(doubled)
    mask.index_copy_(0, order, doubled)
    found = mask[: elements.numel()] if back is None else mask[back]
    del found, mask, doubled, values, order, every, back
    return out


def _nanmedian(tensor: torch.Tensor) -> torch.Tensor:
    ordered, _ = tensor.flatten().sort()
    del _
    missing = ordered.isnan()
    count = missing.sum()
    at = count - 1
    out = tensor.new_empty(())
    del at, count, missing, ordered
    return out


def _trilinear(
    first: torch.Tensor, second: torch.Tensor, third: torch.Tensor,
    expand1: Any, expand2: Any, expand3: Any, summed: Any, unrolled: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Sums of products of three, one slice of a dimension after the other."""
    count = first.dim() + len(expand1)
    one, two, three = (
        _widened(tensor, expand)
        for tensor, expand in ((first, expand1), (second, expand2), (third, expand3))
    )
    left = [d for d in range(count) if d in summed and d != unrolled]
    within = [d for d in left if d not in expand3]
    before = [d for d in left if d in expand3]
    shape = list(torch.broadcast_shapes(one.shape, two.shape, three.shape))
    steps = shape[unrolled]
    for at in summed:
        shape[at] = 1
    out = first.new_zeros(shape)
    for step in range(steps):
        parts = [
            tensor if unrolled in expand else tensor.narrow(unrolled, step, 1)
            for tensor, expand in ((one, expand1), (two, expand2), (three, expand3))
        ]
        pair = _pair(parts[0], parts[1], before)
        both = _pair(pair, parts[2], within)
        del both, pair
    return out.squeeze(tuple(summed)) if summed else out


def _widened(tensor: torch.Tensor, dims: Any) -> torch.Tensor:
    for dim in dims:
        tensor = tensor.unsqueeze(dim)
    return tensor


def _pair(left: torch.Tensor, right: torch.Tensor, summed: list[int]) -> torch.Tensor:
    """``sumproduct_pair``: the product of two as one of matrices.

    Source: aten/src/ATen/native/Linear.cpp (2.13).
    """
    both: list[int] = []
    lefts: list[int] = []
    rights: list[int] = []
    within: list[int] = []
    for dim in range(left.dim()):
        wide = left.shape[dim] != 1, right.shape[dim] != 1
        if dim not in summed:
            (both if all(wide) else lefts if wide[0] else rights).append(dim)
            continue
        within.append(dim)
        if wide == (True, False):
            left = left.sum(dim, keepdim=True)
        elif wide == (False, True):
            right = right.sum(dim, keepdim=True)
    if not within:
        return left * right
    batch, rows, inner, columns = (
        math.prod(of.shape[dim] for dim in dims)
        for of, dims in ((left, both), (left, lefts), (left, within), (right, rights))
    )
    order = both + lefts + within + rights
    product = torch.bmm(
        left.permute(order).reshape(batch, rows, inner),
        right.permute(both + within + rights + lefts).reshape(batch, inner, columns),
    )
    shape = [1 if at in within else max(left.shape[at], right.shape[at]) for at in order]
    return product.view(shape).permute([order.index(dim) for dim in range(left.dim())])


def _like(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(tensor)


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten.multinomial.default: (_multinomial, ""),
    _aten.normal.Tensor_float: (_normal, ""),
    **dict.fromkeys(
        (_aten.normal.float_Tensor, _aten.normal.Tensor_Tensor), (_normal_of_spread, "")
    ),
    _aten.binomial.default: (_like, ""),
    _aten.count_nonzero.default: (_count_nonzero, ""),
    _aten.count_nonzero.dim_IntList: (_count_nonzero, ""),
    _aten.isin.Tensor_Tensor: (_isin, ""),
    _aten.nanmedian.default: (_nanmedian, ""),
    _aten._trilinear.default: (_trilinear, ""),
    _aten._standard_gamma.default: (_like, ""),
    _aten._standard_gamma_grad.default: (_like, ""),
    _aten._sample_dirichlet.default: (_dirichlet, ""),
    _aten._dirichlet_grad.default: (_like, ""),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
