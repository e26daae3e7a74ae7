"""What each process sends through its groups, collective by collective, step by step.

The operators are PyTorch's (``torch/csrc/distributed/c10d/Ops.cpp`` and ``Functional.cpp``, 2.13).
What a process sends for one is that of a ring (NVIDIA/nccl-tests, ``doc/PERFORMANCE.md``); NCCL
may take a tree, or let a switch add up, where that is quicker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.records.trace import Sent

_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""What is a text among arguments, beside the name of a group."""
_Size = Callable[[tuple[Any, ...], int], int]


class Traffic:
    """What this process sent, and the groups through which it did."""

    def __init__(self) -> None:
        self._groups: dict[str, int] = {}
        self._calls: Counter[tuple[int, str, int]] = Counter()
        """By step, collective and size of the group."""
        self._bytes: Counter[tuple[int, str, int]] = Counter()

    @property
    def groups(self) -> tuple[int, ...]:
        """Processes in each group of several, in the order of their first messages."""
        return tuple(size for size in self._groups.values() if size > 1)

    def within(self, gpus: int) -> None:
        """One process has NCCL send between its own GPUs."""
        self._groups["of one process"] = gpus

    def count(self, step: int, func: Any, args: tuple[Any, ...]) -> None:
        """Add what an operator sends, if it is a group's."""
        collectives = _FOUND.get(func.namespace)
        if collectives is None:
            return
        group = next(_groups(args), None)
        if group is None:
            return
        self._groups[group.group_name] = ranks = group.size()
        known = collectives.get(func._schema.name.partition("::")[2])
        if known is None or ranks == 1:
            return
        name, size = known
        self._add(step, name, ranks, size(args, ranks))

    def all_reduced(self, step: int, tensor: torch.Tensor, ranks: int) -> None:
        """Add what a wrapper reduces in C++, out of a recorder's sight."""
        if ranks > 1:
            self._add(step, "all-reduce", ranks, _all_reduced((tensor,), ranks))

    def _add(self, step: int, name: str, ranks: int, size: int) -> None:
        self._calls[step, name, ranks] += 1
        self._bytes[step, name, ranks] += size

    def of_step(self, step: int) -> tuple[Sent, ...]:
        """What was sent in a step."""
        return tuple(
            Sent(collective=name, ranks=ranks, calls=calls, bytes=self._bytes[at, name, ranks])
            for (at, name, ranks), calls in self._calls.items()
            if at == step
        )


def is_sent(func: Any) -> bool:
    """Whether an operator is a group's."""
    return func.namespace in _FOUND


def continued(base: tuple[Sent, ...], one_more: tuple[Sent, ...], times: int) -> tuple[Sent, ...]:
    """What a run with ``times`` more of its parts sends.

    Args:
        base: what a run sends.
        one_more: what the run sends that has one part more: a layer, a micro-batch.
        times: how many parts more.
    """
    before = {(one.collective, one.ranks): one for one in base}
    more = []
    for one in one_more:
        was = before.get((one.collective, one.ranks))
        calls, size = (was.calls, was.bytes) if was is not None else (0, 0)
        more.append(
            Sent(
                collective=one.collective,
                ranks=one.ranks,
                calls=calls + (one.calls - calls) * times,
                bytes=size + (one.bytes - size) * times,
            )
        )
    return tuple(more)


def _groups(args: tuple[Any, ...]) -> Iterator[Any]:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    named: Any = vars(distributed_c10d)["_resolve_process_group"]
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup":  # type: ignore[attr-defined]
            yield dist.ProcessGroup.unbox(arg)
        elif isinstance(arg, dist.ProcessGroup):
            yield arg
        elif isinstance(arg, str) and arg not in _REDUCTIONS:
            yield named(arg)


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes, tensors))


def _all_reduced(args: tuple[Any, ...], ranks: int) -> int:
    return 2 * _bytes(args[0]) * (ranks - 1) // ranks


def _own(at: int) -> _Size:
    """Each process passes on the parts of all others but one, which are as large as its own."""
    return lambda args, ranks: _bytes(args[at]) * (ranks - 1)


def _part(at: int) -> _Size:
    """Of a whole, each process passes on all parts but one."""
    return lambda args, ranks: _bytes(args[at]) * (ranks - 1) // ranks


def _whole(args: tuple[Any, ...], ranks: int) -> int:
    return _bytes(args[0])


_FOUND: dict[str, dict[str, tuple[str, _Size]]] = {
    "c10d": {
        **dict.fromkeys(("allreduce_", "allreduce_coalesced_"), ("all-reduce", _all_reduced)),
        **dict.fromkeys(
            (
                *("allgather_", "_allgather_base_", "allgather_coalesced_"),
                "allgather_into_tensor_coalesced_",
            ),
            ("all-gather", _own(1)),
        ),
        **dict.fromkeys(
            ("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
            ("reduce-scatter", _own(0)),
        ),
        **dict.fromkeys(("alltoall_", "alltoall_base_"), ("all-to-all", _part(1))),
        "broadcast_": ("broadcast", _whole),
        "reduce_": ("reduce", _whole),
        "gather_": ("gather", _own(1)),
        "send": ("send", _whole),
    },
    "_c10d_functional": {
        **dict.fromkeys(
            ("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_"),
            ("all-reduce", _all_reduced),
        ),
        **dict.fromkeys(
            (
                *("all_gather_into_tensor", "all_gather_into_tensor_out"),
                "all_gather_into_tensor_coalesced",
            ),
            ("all-gather", _own(0)),
        ),
        **dict.fromkeys(
            (
                *("reduce_scatter_tensor", "reduce_scatter_tensor_out"),
                "reduce_scatter_tensor_coalesced",
            ),
            ("reduce-scatter", _part(0)),
        ),
        **dict.fromkeys(("broadcast", "broadcast_"), ("broadcast", _whole)),
        "all_to_all_single": ("all-to-all", _part(0)),
        "isend": ("send", _whole),
    },
}
"""By namespace and operator: the collective, and what is sent by it. Functional ones are given
what is sent first, c10d's are given where the result goes."""
