"""The table of PyTorch operators whose results are computed on the host, and their rules."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.engine.host_view import map_tensors, tensors_in

_C: Any = torch._C

SMALL = 1 << 12
"""Largest tensors, in elements, that are computed even from unknown numbers: the host takes one
microsecond, and a call of PyTorch takes five."""
LARGE = 1 << 27
"""Elements of the largest tensors whose numbers are computed: 0.1 s for a simple operator."""
PUT = 1 << 20
"""Largest tensors of unknown floats, in elements, that are sorted."""
COMPARES = frozenset("eq ne lt le gt ge isnan isinf isposinf isneginf all any".split())
"""Operators that may decide something: they are computed at any size, of unknown numbers too."""
AGAINST_A_NUMBER = frozenset("eq ne lt le gt ge".split())
PUTS_BY_INDEX = frozenset("index_put_ index_put _index_put_impl_".split())
"""Operators that put numbers at given places: backward calls them with unknown ones."""
FILLS = frozenset("scatter masked_fill index_fill".split())
SORTS = frozenset(("sort", "topk"))
PUTS = PUTS_BY_INDEX | FILLS | SORTS | frozenset(("where",))
"""Operators that put known numbers between unknown ones, or whose places matter most."""
MOVES = frozenset("stack cat clone flip roll tril triu gather index_select".split())
"""Operators that only lay their numbers out anew."""
MADE = 1 << 22
"""Elements of the largest float tensors that are filled: states of optimizers are larger."""
ZEROS = frozenset("zeros zeros_like new_zeros".split())
MAKES = frozenset("zeros zeros_like new_zeros fill fill_ full arange eye linspace".split())
"""Operators whose results follow from no tensor's numbers."""
TRANSFERS = frozenset(("_to_copy", "copy_"))
ENDS = {"max": 1, "amax": 1, "min": 0, "amin": 0}
"""Operators that find the end of a range: 1 the upper, 0 the lower."""
DISTRIBUTIONS = frozenset(("_softmax", "_log_softmax"))
HIGHEST: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim"), (1, None)),
    "aten::topk": (2, -1),
}
"""Operators that choose places by scores; place and default of their dimension."""
CALLED_WITH_OUT = frozenset("arange eye linspace randperm".split())
"""Operators that PyTorch's own C++ calls by the overloads that are given their result."""
RESULTS = """
eq ne lt le gt ge isnan isinf isposinf isneginf logical_and logical_or logical_not logical_xor
bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ __xor__ __lshift__ __rshift__ any all
_is_all_true _is_any_true sum max min amax amin argmax argmin cumsum cumprod prod mean std var
count_nonzero sort topk where gather scatter scatter_add scatter_reduce index_select index_add
index_fill index_copy masked_fill masked_scatter histc searchsorted bucketize arange fill_ randint
randperm random_ multinomial bernoulli uniform_ normal_ exponential_ _to_copy copy_ clone add sub
rsub mul div floor_divide remainder fmod neg abs sign clamp clamp_min clamp_max cat stack flip roll
tril triu eye linspace floor ceil round trunc sqrt rsqrt exp expm1 log log2 log10 log1p pow minimum
maximum reciprocal sin cos tan atan2 sigmoid tanh lerp addcmul addcdiv _cdist_forward
_euclidean_dist linalg_vector_norm zeros zeros_like new_zeros full _softmax _log_softmax
affine_grid_generator grid_sampler_2d upsample_nearest2d upsample_bilinear2d constant_pad_nd
kthvalue cummax cummin mode tril_indices triu_indices take put aminmax gcd lcm frexp
bitwise_left_shift bitwise_right_shift nan_to_num erf baddbmm _linalg_det linalg_inv_ex
linalg_cholesky_ex linalg_matrix_exp lgamma digamma erfc erfinv exp2 sinc asin acos atan sinh cosh
asinh acosh atanh logit copysign hypot xlogy heaviside renorm index_reduce cauchy_ geometric_
log_normal_ max_unpool2d max_unpool3d lu_unpack addbmm geqrf ormqr triangular_solve linalg_qr
_linalg_eigh linalg_lu_factor_ex linalg_lu linalg_lu_solve linalg_solve_triangular
_linalg_svd _linalg_solve_ex linalg_householder_product cholesky cholesky_solve _amp_update_scale_
""".split()
"""Operators whose results are computed on the host where that is cheap enough."""
WITH_COUNTS = """
nonzero masked_select index index_put_ index_put _index_put_impl_ masked_scatter_backward _unique2
unique_dim unique_consecutive repeat_interleave bincount isin _coalesce
""".split()
"""Operators that read from the GPU how large their result is: followed in backward too."""
LENGTHS = frozenset(("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"))
MASKS = (torch.bool, torch.uint8)


@dataclasses.dataclass(frozen=True, slots=True)
class Followed:
    """An operator of PyTorch's, and how its numbers are computed on the host."""

    op: Any
    base: str
    writes: tuple[tuple[int, str], ...]
    """Places and names of the arguments that it writes to."""
    given_result: bool
    """It is given the tensor that becomes its result."""
    draws: bool | None
    """Whether it can be given a generator; None: it draws nothing."""
    overwrites: bool
    """What stood before in the tensors that it writes to does not matter."""
    updates: bool
    """It changes numbers that stand in a tensor."""
    makes_one: bool
    """It returns one new tensor that depends only on its arguments."""

    @classmethod
    def from_schema(cls, op: Any, base: str) -> Followed:
        """Make the record of an operator from its schema."""
        writes = tuple(
            (place, one.name)
            for place, one in enumerate(op._schema.arguments)
            if one.alias_info is not None and one.alias_info.is_write
        )
        draws = None
        if torch.Tag.nondeterministic_seeded in op.tags:
            draws = any(one.name == "generator" for one in op._schema.arguments)
        given = "out" in op.name().rpartition(".")[2].split("_")
        given &= base not in CALLED_WITH_OUT
        overwrites = given or base in MAKES or base in TRANSFERS or draws is not None
        updates = bool(writes) and not overwrites and base not in PUTS
        returns = op._schema.returns
        one = len(returns) == 1 and isinstance(returns[0].type, torch._C.TensorType)
        one &= not writes and draws is None
        return cls(op, base, writes, given, draws, overwrites, updates, one)

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Return the tensors among its arguments that it writes to."""
        found = [
            args[place] if place < len(args) else kwargs.get(name) for place, name in self.writes
        ]
        return tensors_in(found)


@functools.cache
def list_followed(*, counts: bool) -> tuple[Followed, ...]:
    """Return the operators that are followed; ``counts``: those that ask for a result's size."""
    known = set(_C._dispatch_get_all_op_names())
    found: dict[str, Followed] = {}
    for base in WITH_COUNTS if counts else RESULTS:
        for name in {base, base if base.endswith("_") else f"{base}_"}:
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                op = getattr(packet, overload)
                if op.name() not in known or op.name() in found or is_composed(op):
                    continue
                followed = Followed.from_schema(op, base)
                if not (counts and followed.given_result):
                    found[op.name()] = followed
    return tuple(found.values())


def is_composed(op: Any) -> bool:
    """Return True if an operator's implementation calls others, which are followed."""
    key = "CompositeImplicitAutograd"
    return bool(_C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def spread_evenly(
    places: torch.Tensor,
    scores: torch.Tensor,
    dim: int | None,
    shift: int,
    excluded: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return indices that choose each of the scores equally often, like a router's experts.

    The first is in the middle, or farther by a shift: special tokens are the first of a vocabulary,
    or its last.

    Args:
        places: the indices that the operator returns.
        scores: what it chooses by.
        dim: along which it chooses; None: among all.
        shift: by how many places the first is farther.
        excluded: the scores to choose last, as a mask on the host; None: there are none.
    """
    among = scores.numel() if dim is None else scores.shape[dim]
    numbers = torch.arange(places.numel(), device="cpu") + among // 2 + shift
    along = dim if places.dim() and places.dim() == scores.dim() else None
    numbers = numbers.view(places.shape if along is None else places.movedim(along, -1).shape)
    if excluded is None:
        numbers = numbers % among
    else:
        rows = (excluded.reshape(-1) if dim is None else excluded.movedim(dim, -1)).byte()
        each = numbers.unsqueeze(-1) if along is None else numbers
        count, most = among - rows.sum(-1, keepdim=True), each.shape[-1]
        each = torch.where(
            count < most, torch.arange(most, device="cpu"), each % count.clamp(min=1)
        )
        found = rows.argsort(dim=-1, stable=True).gather(-1, each.view(*rows.shape[:-1], most))
        numbers = found.view(numbers.shape)
    return numbers if along is None else numbers.movedim(-1, along)


def find_excluded(scores: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of scores that a program put there so that they are not chosen, or None.

    They are -inf, or lie farther below all others than these are apart, or are the only ones that
    are not above zero.
    """
    found = scores == -math.inf
    others = scores[~found]
    if others.numel():
        low, high = (end.item() for end in others.aminmax())
        above = others[others > low]
        second = above.min().item() if above.numel() else low
        if second - low > high - second or low <= 0 < second:
            found |= scores == low
    return found if found.any() else None


def read_by(
    op: Any,
    base: str,
    args: Any,
    kwargs: Any,
    view: Callable[[torch.Tensor], torch.Tensor],
    knows: Callable[[torch.Tensor], bool],
) -> tuple[Any, list[tuple[int, int]]]:
    """Return the numbers that an operator reads from the GPU to size its result.

    Args:
        op: the operator.
        base: its name without overload.
        args: its positional arguments.
        kwargs: its keyword arguments.
        view: returns a CPU tensor with the numbers of one on the GPU.
        knows: whether the numbers of a tensor are known.

    Returns:
        Its result, where that had to be made on the host; bytes and number of each reading.
    """
    if base in LENGTHS:
        with contextlib.suppress(Exception):
            made = op(*map_tensors(args, view), **map_tensors(kwargs, view))
            first = made[0] if isinstance(made, tuple | list) else made
            if base == "unique_dim":
                return made, [(4, first.shape[args[1]])]
            if base == "_unique2" and args[0].dtype is torch.bool:
                return made, [(4, int(view(args[0]).count_nonzero()))]
            repeats = [(1, 1)] if base == "repeat_interleave" else []
            return made, [(8, first.shape[0]), *repeats]
        return None, []
    if base == "_coalesce":
        places = args[0]._indices()
        # Of those that are not known, no two are alike.
        different = view(places).unique(dim=1) if knows(places) else places
        return None, [(4, different.shape[1])]
    if base == "bincount":
        host = view(args[0])
        ends = (host.min(), host.max()) if host.numel() else ()
        return None, [(host.element_size(), int(end)) for end in ends]
    if base == "isin":
        given = (one for one in args[:2] if isinstance(one, torch.Tensor))
        return None, [(8, int(view(one).unique().numel())) for one in given]
    counted = counted_in(base, args)
    return None, [(4, int(view(mask).count_nonzero()) * times) for mask, times in counted]


def counted_in(base: str, args: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the tensors in which an operator counts what is not zero, and how many times over."""
    if base == "nonzero":
        yield args[0], 1
    elif base in ("masked_select", "masked_scatter_backward"):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        yield args[1], shape.numel() // max(args[1].numel(), 1)
    else:
        yield from ((one, 1) for one in args[1] if one is not None and one.dtype in MASKS)


def find_masks(base: str, args: Any) -> list[torch.Tensor]:
    """Return the tensors in which an operator counts what it keeps."""
    if base not in ("nonzero", "masked_select", "index"):
        return []
    return [one for one, _ in counted_in(base, args)]


def constant_answer(
    one: Followed,
    args: Any,
    state: Callable[[torch.Tensor], int],
    ends: tuple[float, float],
) -> bool | None:
    """Return a comparison's result if it is equal for all elements of a large unknown tensor.

    Args:
        one: the comparison.
        args: its arguments.
        state: returns 0 for a tensor none of whose numbers is known.
        ends: the lowest and the highest of the made-up numbers.

    Returns:
        None if the result differs by element, or the tensor is small or known.
    """
    first, others = args[0], args[1:]
    if not isinstance(first, torch.Tensor) or first.numel() <= SMALL:
        return None
    if not (first.is_cuda and first.is_floating_point() and not state(first)):
        return None
    if one.base.startswith("is"):
        return False
    if one.base not in AGAINST_A_NUMBER or not others:
        return None
    other = others[0]
    if isinstance(other, torch.Tensor):
        if other.is_cuda and one.base in ("eq", "ne") and other.data_ptr() == first.data_ptr():
            return one.base == "eq"
        return None
    found = one.op(torch.tensor(ends, device="cpu"), other).tolist()
    return bool(found[0]) if found[0] == found[1] else None


def is_finiteness_test(one: Followed, args: Any) -> bool:
    """Return True if a comparison only tests whether numbers are finite.

    Numbers of a sound program are finite, so its answer is no guess.
    """
    if one.base not in COMPARES:
        return False
    if one.base.startswith("is"):
        return True
    if one.base in AGAINST_A_NUMBER and len(args) > 1:
        other = args[1]
        if isinstance(other, torch.Tensor):
            return isinstance(args[0], torch.Tensor) and other.data_ptr() == args[0].data_ptr()
        return isinstance(other, float) and not math.isfinite(other)
    return False
