"""What ``DataParallel`` calls in C++ to spread tensors over GPUs and to bring them together.

Source: torch/csrc/cuda/comm.cpp and torch/csrc/utils/tensor_flatten.cpp (2.13). What is sent by
NCCL lands in memory that is made before; NCCL's own memory is none of the allocator's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.script.visible import Gpus
from memcalc.trace import streams

_Tensors = Sequence[torch.Tensor]


def install(patches: Patches, gpus: Gpus, by_nccl: Callable[[int], None]) -> None:
    """Answer for ``torch.nn.parallel.comm``.

    Args:
        patches: what is changed.
        gpus: that the script has.
        by_nccl: told of how many GPUs something is sent between.
    """

    def there(devices: Iterable[int]) -> list[torch.device]:
        found = []
        for index in devices:
            gpus.own(int(index))
            found.append(torch.device("cuda", int(index)))
        return found

    def scatter(
        tensor: torch.Tensor, devices: Any, sizes: Any = None, dim: int = 0, on: Any = None
    ) -> tuple[torch.Tensor, ...]:
        places = there(devices)
        parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(places), dim)
        made = []
        for index, part in enumerate(parts):
            with streams.use(on[index] if on else None):
                made.append(part.to(places[index], non_blocking=True).view_as(part))
        return tuple(made)

    def broadcast(tensor: torch.Tensor, devices: Any) -> list[torch.Tensor]:
        by_nccl(len(devices))
        return _broadcast(tensor, there(devices))

    def coalesced(tensors: Any, devices: Any, size: int) -> list[list[torch.Tensor]]:
        by_nccl(len(devices))
        with torch.no_grad():
            return _coalesced(list(tensors), there(devices), size)

    def gather(tensors: Any, dim: int, destination: int | None = None) -> torch.Tensor:
        if destination is None:
            destination = gpus.current()
        place = torch.device("cpu") if destination == -1 else there((destination,))[0]
        return _gather(tensors, dim, place)

    for name, function in (
        ("_scatter", scatter),
        ("_scatter_out", _scatter_out),
        ("_broadcast", broadcast),
        ("_broadcast_out", _broadcast_out),
        ("_broadcast_coalesced", coalesced),
        ("_gather", gather),
        ("_gather_out", _gather_out),
        # What torch.cuda.nccl calls: it puts results where it is told.
        *((f"_nccl_{name}", _sent) for name in ("all_reduce", "reduce", "broadcast")),
        *((f"_nccl_{name}", _sent) for name in ("all_gather", "reduce_scatter")),
    ):
        patches.set(torch._C, name, function)


def _sent(*_: Any) -> None:
    """Nothing is."""


def _broadcast(tensor: torch.Tensor, places: list[torch.device]) -> list[torch.Tensor]:
    """A copy on each device, and the tensor itself where it is."""
    return [
        tensor if tensor.device == place else torch.empty_like(tensor, device=place).copy_(tensor)
        for place in places
    ]


def _broadcast_out(tensor: torch.Tensor, out: _Tensors) -> _Tensors:
    for one in out:
        one.copy_(tensor, non_blocking=True)
    return out


def _coalesced(
    tensors: list[torch.Tensor], places: list[torch.device], size: int
) -> list[list[torch.Tensor]]:
    """Many at once, in buffers; what arrives are views of those."""
    made: list[dict[int, torch.Tensor]] = [{} for _ in places[1:]]
    for group in _groups(tensors, size):
        _in_one(tensors, group, places, made)
    return [tensors, *([found[index] for index in range(len(tensors))] for found in made)]


def _in_one(
    tensors: list[torch.Tensor],
    group: list[int],
    places: list[torch.device],
    made: list[dict[int, torch.Tensor]],
) -> None:
    """One buffer, which is let go before there is the next."""
    chosen = [tensors[index] for index in group]
    for found, buffer in zip(made, _broadcast(_flat(chosen), places)[1:], strict=True):
        pieces = buffer.split([tensor.numel() for tensor in chosen])
        for index, piece in zip(group, pieces, strict=True):
            found[index] = piece.view(tensors[index].shape).detach()


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    parts = [tensor.contiguous().view(-1) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _groups(tensors: list[torch.Tensor], size: int) -> Iterator[list[int]]:
    """Places of tensors of one type that share a buffer."""
    open_ones: dict[torch.dtype, tuple[list[int], int]] = {}
    for index, tensor in enumerate(tensors):
        group, held = open_ones.pop(tensor.dtype, ([], 0))
        own = tensor.numel() * tensor.element_size()
        group.append(index)
        if held + own >= size:
            yield group
        else:
            open_ones[tensor.dtype] = group, held + own
    yield from (group for group, _ in open_ones.values())


def _gather(tensors: _Tensors, dim: int, place: torch.device) -> torch.Tensor:
    first = tensors[0]
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    last = torch.channels_last
    across = first.dim() == 4 and all(one.is_contiguous(memory_format=last) for one in tensors)
    formed = last if across and not first.is_contiguous() else torch.contiguous_format
    out = torch.empty(shape, dtype=first.dtype, device=place, memory_format=formed)
    return _gather_out(tensors, out, dim)


def _gather_out(tensors: _Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
    parts = out.split([tensor.shape[dim] for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor, non_blocking=out.is_cuda)
    return out


def _scatter_out(tensor: torch.Tensor, out: _Tensors, dim: int = 0, on: Any = None) -> _Tensors:
    parts = tensor.split([one.shape[dim] for one in out], dim)
    for index, (one, part) in enumerate(zip(out, parts, strict=True)):
        with streams.use(on[index] if on else None):
            one.copy_(part, non_blocking=True)
    return out
