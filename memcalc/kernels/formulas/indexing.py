"""What indexing, sorting and scans take, by the name of the kernel."""

from __future__ import annotations

from collections.abc import Mapping

from memcalc.kernels import cub, indexing
from memcalc.kernels.scratch import Allocations, Formula, Scratch, behind, later, nested
from memcalc.kernels.target import Target


def _index_put(
    target: Target, count: int, indices: int, rows: int, copied: tuple[int, ...]
) -> Scratch:
    return Scratch(after=indexing.index_put_sorted(count, indices, rows, copied, target))


def _sort(target: Target, elements: int, along: int, key_bytes: int, in_rows: bool) -> Scratch:
    return Scratch(after=indexing.sort(elements, along, key_bytes, in_rows, target))


def _chosen(
    target: Target, slices: int, along: int, key_bytes: int, copied: int = 0
) -> Allocations:
    """The largest of each slice; what does not lie in rows is copied first (bytes, or 0)."""
    found = indexing.radix_topk(slices, along, key_bytes, target)
    return (copied, *later(found, 1), ~0) if copied else found


def _topk(
    target: Target,
    elements: int,
    along: int,
    key_bytes: int,
    in_rows: bool,
    chosen: tuple[int, int] = (0, 0),
    copied: int = 0,
) -> Scratch:
    """What was chosen is sorted into other places, and its indices are gathered by those.

    ``chosen``: slices, and elements of each, of which it was chosen.
    """
    first = _chosen(target, *chosen, key_bytes, copied)
    places, keys = elements * indexing.INDEX, elements * key_bytes
    sorted_ = indexing.sort(elements, along, key_bytes, in_rows, target)
    taken = 2 + sum(word > 0 for word in sorted_)
    then = (places, keys, *later(sorted_, 2), places, ~taken, ~1, ~0)
    return Scratch(after=(*first, *later(then, sum(word > 0 for word in first))))


def _randperm(target: Target, count: int, element_bytes: int) -> Scratch:
    return Scratch(after=indexing.randperm(count, element_bytes, target))


def _masked_scatter(target: Target, count: int, mask: int, source: int) -> Scratch:
    """Places in the source, which are running sums of the mask; what has gaps is copied."""
    sums = cub.scan(count, 8) if count else 0
    copied = (count * 8, mask) if mask else (count * 8,)
    first = len(copied)
    last = (source, ~(first + 1)) if source else ()
    return Scratch(after=(*copied, sums, ~first, *last, *(~n for n in reversed(range(first)))))


def _embedding_backward(
    target: Target,
    indices: int,
    rows: int,
    width: int,
    index_bytes: int,
    copies: tuple[int, ...],
    bag: bool,
    by_frequency: bool,
    element_bytes: int,
) -> Scratch:
    """``copies``: bytes of what is copied first and held to the end."""
    before, after = indexing.embedding_backward(
        indices,
        rows,
        width,
        index_bytes,
        target,
        element_bytes=element_bytes,
        bag=bag,
        by_frequency=by_frequency,
    )
    return behind(copies, after, before)


def _scan(target: Target, count: int, element_bytes: int, copied: int = 0) -> Scratch:
    return Scratch(after=nested(copied, cub.scan(count, element_bytes) if count else 0))


def _freed(size: int) -> Scratch:
    return Scratch(after=(size, ~0))


FORMULAS: Mapping[str, Formula] = {
    "index_put": _index_put,
    "sort": _sort,
    "topk": _topk,
    "randperm": _randperm,
    "masked_scatter": _masked_scatter,
    "embedding_backward": _embedding_backward,
    "scan": _scan,
    "put_sorted": lambda target, count, rows, copied: Scratch(
        after=indexing.put_sorted(count, rows, copied, target)
    ),
    "radix_topk": lambda target, *call: Scratch(after=_chosen(target, *call)),
    "count": lambda target, count: _freed(cub.count_nonzero(count, target)),
    "select": lambda target, count: _freed(cub.select(count, target)),
    "sort_keys": lambda target, count, size, real: _freed(
        cub.sort_keys(count, target, size, size * 8, real=real)
    ),
    "sort_pairs": lambda target, count, size: _freed(
        cub.sort_pairs(count, size, indexing.INDEX, size * 8, target)
    ),
    "sum_flags": lambda target, count: _freed(cub.sum_flags(count, target)),
    "run_lengths": lambda _, count: _freed(cub.run_lengths(count)),
    "distinct": lambda target, count, size, real: _freed(
        cub.distinct(count, size, target, real=real)
    ),
}
