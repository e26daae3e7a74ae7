"""Indexing by masks and by what lies on the host: positions are made on the device first.

Sources: aten/src/ATen/native/IndexingUtils.h, ``expandTensors``; TensorAdvancedIndexing.cpp,
``make_info`` and ``_index_put_impl_``; cuda/Indexing.cu, ``wrapIndexOnce`` (2.13).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.trace.operators.counted import Take
from memcalc.trace.operators.deterministic import is_wanted

_aten = torch.ops.aten
_INDEX, _PUT = _aten.index.Tensor, _aten.index_put_.default
_MASKS = (torch.bool, torch.uint8)
_KERNEL: ContextVar[bool] = ContextVar("kernel", default=False)
"""The places were made and looked at: the kernel itself runs."""
Indices = Sequence[torch.Tensor | None]


def needs_places(func: Any, tensor: torch.Tensor, indices: Any, *rest: Any) -> bool:
    """CUDA does not index by these tensors as they are, or looks at them first.

    Args:
        func: of ``PLACED``.
        tensor: what is indexed.
        indices: tensors, and ``None`` for whole dimensions.
        rest: of putting: values, and whether they are added.
    """
    if not isinstance(indices, list | tuple):
        return False
    given = [index for index in indices if isinstance(index, torch.Tensor)]
    moved = any(index.dtype != torch.long or index.device != tensor.device for index in given)
    if _KERNEL.get():
        return False
    if func is _INDEX:
        return moved
    if _fills(tensor, given, rest[0]):
        return False
    return (
        moved
        or (func is _PUT and sorts((tensor, indices, *rest)))
        or _is_host_number(tensor, rest[0])
    )


def sorts(args: Sequence[Any]) -> bool:
    """Positions are sorted where values are added, and where results shall be the same each time.

    Source: TensorAdvancedIndexing.cpp, ``_index_put_impl_`` (2.13).
    """
    adds = len(args) > 3 and bool(args[3])
    return adds or is_wanted()


def _is_host_number(tensor: torch.Tensor, values: torch.Tensor) -> bool:
    return not values.dim() and values.device != tensor.device


def _fills(tensor: torch.Tensor, given: Sequence[torch.Tensor], values: torch.Tensor) -> bool:
    """One number of the host where a mask is: ``canDispatchToMaskedFill``.

    On a device that PyTorch does not take for CUDA, Python's numbers come as tensors of it.
    """
    comes_with_it = tensor.device.type != "cuda" and not values.dim()
    return (
        values.numel() == 1
        and (values.device.type == "cpu" or comes_with_it)
        and len(given) == 1
        and given[0].dtype in _MASKS
        and given[0].device == tensor.device
    )


def _expanded(indices: Indices) -> list[torch.Tensor | None]:
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            expanded.extend(index.nonzero().unbind(1))
        else:
            expanded.append(index)
    return expanded


def _places(tensor: torch.Tensor, indices: Indices) -> list[torch.Tensor | None]:
    """Masks become positions, on the mask's device; those of the host are copied.

    Whole numbers of 32 bits are spread over all places before they are widened.
    """
    places = [None if index is None else index.to(tensor.device) for index in _expanded(indices)]
    shape = _spread_shape(places)
    return [
        index.expand(shape).long() if index is not None and index.dtype is torch.int else index
        for index in places
    ]


def _spread_shape(indices: Indices) -> torch.Size:
    return torch.Size(
        torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    )


def _let_go(places: list[torch.Tensor | None]) -> None:
    """As the list in C++ does: from its end."""
    while places:
        places.pop()


def _index(take: Take, tensor: torch.Tensor, indices: Indices) -> torch.Tensor:
    places = _places(tensor, indices)
    out: torch.Tensor = _INDEX(tensor, places)
    _let_go(places)
    return out


def _put(
    take: Take,
    tensor: torch.Tensor,
    indices: Indices,
    values: torch.Tensor,
    accumulate: bool = False,
    *,
    looks: bool = True,
) -> torch.Tensor:
    if _is_host_number(tensor, values):
        values = values.to(tensor.device)
    if sorts((tensor, indices, values, accumulate)):
        return _add(take, tensor, indices, values, accumulate, looks=looks)
    places = _places(tensor, indices)
    with _kernel_runs():
        _PUT(tensor, places, values)
    _let_go(places)
    return tensor


def _add(
    take: Take,
    tensor: torch.Tensor,
    indices: Indices,
    values: torch.Tensor,
    accumulate: bool,
    *,
    looks: bool,
) -> torch.Tensor:
    """Places become single numbers, by which all is sorted."""
    expanded = _expanded(indices)
    shape, sizes = _spread_shape(expanded), sizes_put(tensor, expanded, values)
    given = [index.long() for index in expanded if index is not None]
    numbers = None
    for place in given:
        one: torch.Tensor | None = _number(place, shape, tensor.device, looks=looks)
        numbers, one = (numbers if numbers is not None else one), None
    del place, expanded, given
    with _kernel_runs():
        _PUT(tensor, indices, values, accumulate)
    take(KernelCall("put_sorted", sizes))
    del numbers
    return tensor


def _number(place: torch.Tensor, shape: Any, device: torch.device, *, looks: bool) -> torch.Tensor:
    """Wrapped and multiplied where it lies, then copied to the device."""
    if place.device != device:
        return torch.empty(shape, dtype=torch.long, device=device)
    if looks and place.numel():
        _look_at(place)
    wrapped = place.new_empty(shape)
    number = place.new_empty(shape)
    del wrapped
    return number


def _look_at(index: torch.Tensor) -> None:
    """The largest and the smallest are read."""
    smallest, largest = index.aminmax()
    for one in (largest, smallest):
        one >= 0  # noqa: B015
    del largest, smallest


def sizes_put(
    tensor: torch.Tensor, indices: Indices, values: torch.Tensor
) -> tuple[int, int, tuple[int, int]]:
    """Positions that are written to, rows that there are of them, and bytes of copies.

    Copied are values that do not lie in a row, and the tensor where what is indexed of it does not.
    """
    given = [index for index in indices if index is not None]
    count = math.prod(_spread_shape(given))
    rows = math.prod(
        size for size, index in zip(tensor.shape, indices, strict=False) if index is not None
    )
    # Fewer values than places are spread: cuda/Indexing.cu, ``index_put_with_sort_kernel``.
    placed = max(count * (tensor.numel() // max(rows, 1)), values.numel())
    in_a_row = values.is_contiguous() and values.numel() == placed
    copied = 0 if in_a_row else placed * values.element_size()
    return count, rows, (copied, 0 if _lies_as_indexed(tensor, indices) else _bytes_of(tensor))


def _lies_as_indexed(tensor: torch.Tensor, indices: Indices) -> bool:
    """Indexed dimensions between which others lie are moved to the front first.

    Source: IndexingUtils.h, ``transposeToFrontAndInvPerm``; cuda/Indexing.cu (2.13).
    """
    at = [dim for dim, index in enumerate(indices) if index is not None]
    if at and at != list(range(at[0], at[0] + len(at))):
        tensor = tensor.permute(*at, *(dim for dim in range(tensor.dim()) if dim not in at))
    return tensor.is_contiguous()


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def is_numbered() -> bool:
    """The positions were made: what is taken for them is written down."""
    return _KERNEL.get()


@contextlib.contextmanager
def _kernel_runs() -> Iterator[None]:
    token = _KERNEL.set(True)
    try:
        yield
    finally:
        _KERNEL.reset(token)


def put_by(take: Take, func: Any, args: tuple[Any, ...]) -> Any:
    """Run what puts values in places, where it is more than a kernel, else ``NotImplemented``.

    A gradient's formula, which puts into its own zeros, trusts the places that it was given.
    """
    if func in (_aten.index_put.default, _aten._unsafe_index_put.default):
        return _PUT(args[0].clone(), *args[1:])
    if func is _PUT and needs_places(func, *args[:3]):
        return _put(take, *args, looks=False)
    return NotImplemented


PUTS = {_PUT, _aten.index_put.default, _aten._unsafe_index_put.default}
"""What ``put_by`` knows."""
PLACED: dict[Any, Callable[..., Any]] = {_INDEX: _index, _PUT: _put}
"""What runs instead where ``needs_places``; given first what writes down a kernel's own part."""
