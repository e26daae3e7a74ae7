"""PyTorch operators whose small results are computed on the host, and their inputs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.engine.host_view import on_host

_C: Any = torch._C

COMPARES = frozenset("eq ne lt le gt ge isnan isinf isposinf isneginf isfinite all any".split())
PUTS = frozenset("scatter scatter_add masked_fill index_fill index_put where fill fill_".split())
"""Operators that put numbers into tensors of which nothing else need be known."""
PLACES = frozenset("sort topk".split())
"""Operators whose places are different ones whatever the numbers are."""
MOVES = frozenset("stack cat clone flip roll tril triu gather index_select".split())
"""Operators whose results are zeros where all that they are given is."""
HIGHEST: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim"), (1, None)),
    "aten::topk": (2, -1),
}
"""Operators that say where the highest scores are; place and default of their dimension."""
UNDEFINED_AT_ZERO = {"div": 1, "fmod": 1, "remainder": 1, "log": 0, "pow": 0, "reciprocal": 0}
"""Operators that a zero can make infinite, and the place of the argument where it stands."""
CALLED_WITH_OUT = frozenset("arange eye linspace randperm".split())
"""Operators that PyTorch's own C++ calls by the overloads that are given their result."""
RESULTS = """
eq ne lt le gt ge isnan isinf isposinf isneginf logical_and logical_or logical_not logical_xor
bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ __xor__ __lshift__ __rshift__ any all
_is_all_true _is_any_true sum max min amax amin argmax argmin cumsum cumprod prod mean
count_nonzero sort topk where gather scatter scatter_add scatter_reduce index_select index_add
index_fill index_copy masked_fill masked_scatter histc searchsorted bucketize arange fill_ randint
randperm random_ multinomial bernoulli uniform_ normal_ _to_copy copy_ clone add sub rsub mul div
floor_divide remainder fmod neg abs sign clamp clamp_min clamp_max cat stack flip roll tril triu
eye linspace floor ceil round trunc sqrt exp log pow minimum maximum reciprocal _foreach_add
_cdist_forward _euclidean_dist linalg_vector_norm
""".split()
"""Operators whose small results are worked out."""
WITH_COUNTS = """
nonzero masked_select index index_put_ index_put _index_put_impl_ masked_scatter_backward _unique2
unique_dim unique_consecutive repeat_interleave bincount isin _coalesce
""".split()
"""Operators that read from the GPU how large their result is: followed in backward too."""
LENGTHS = frozenset(("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"))
MASKS = (torch.bool, torch.uint8)


def is_composed(op: Any) -> bool:
    """Made of other operators, which are followed themselves."""
    key = "CompositeImplicitAutograd"
    return bool(_C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


def written(op: Any) -> list[tuple[int, str]]:
    """Places and names of the arguments that an operator writes to."""
    return [
        (place, one.name)
        for place, one in enumerate(op._schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    ]


def draws(op: Any) -> bool | None:
    """Whether an operator that draws can be given a generator; ``None``: it draws nothing."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return None
    return any(one.name == "generator" for one in op._schema.arguments)


def spread(places: torch.Tensor, scores: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Where the highest scores are if each is as often as any other: a router's experts."""
    numbers = torch.arange(places.numel(), device="cpu")
    if dim is None or not places.dim():
        return numbers.reshape(places.shape)
    several = places.dim() == scores.dim()
    shape = places.movedim(dim, -1).shape if several else places.shape
    made = (numbers % scores.shape[dim]).view(shape)
    return made.movedim(-1, dim) if several else made


def read_by(
    op: Any, base: str, args: Any, kwargs: Any, knows: Callable[[torch.Tensor], bool]
) -> tuple[Any, list[tuple[int, int]]]:
    """What an operator reads from the GPU of how large its result is.

    Returns:
        Its result, where that had to be made on the host; bytes and number of each reading.
    """
    if base in LENGTHS:
        with contextlib.suppress(Exception):
            made = op(*on_host(args), **on_host(kwargs))
            first = made[0] if isinstance(made, tuple | list) else made
            if base == "unique_dim":
                return made, [(4, first.shape[args[1]])]
            if base == "_unique2" and args[0].dtype is torch.bool:
                return made, [(4, int(on_host(args[0]).count_nonzero()))]
            repeats = [(1, 1)] if base == "repeat_interleave" else []
            return made, [(8, first.shape[0]), *repeats]
        return None, []
    if base == "_coalesce":
        places = args[0]._indices()
        # Of those that are not known, no two are alike.
        different = on_host(places).unique(dim=1) if knows(places) else places
        return None, [(4, different.shape[1])]
    if base == "bincount":
        host = on_host(args[0])
        ends = (host.min(), host.max()) if host.numel() else ()
        return None, [(host.element_size(), int(end)) for end in ends]
    if base == "isin":
        given = (one for one in args[:2] if isinstance(one, torch.Tensor))
        return None, [(8, int(on_host(one).unique().numel())) for one in given]
    counted = _counted_in(base, args)
    return None, [(4, int(on_host(mask).count_nonzero()) * times) for mask, times in counted]


def _counted_in(base: str, args: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """In which tensors an operator counts what is not zero, and how many times over."""
    if base == "nonzero":
        yield args[0], 1
    elif base in ("masked_select", "masked_scatter_backward"):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        yield args[1], shape.numel() // max(args[1].numel(), 1)
    else:
        yield from ((one, 1) for one in args[1] if one is not None and one.dtype in MASKS)
