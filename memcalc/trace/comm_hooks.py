"""What DDP calls with each bucket of gradients: the program's own hook, or none.

A reducer takes one hook for all its time (torch/csrc/distributed/c10d/reducer.cpp,
``register_comm_hook``, 2.13), and that is the recorder's: a program's is called by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from memcalc.trace.torch_private.names import replaced

_ONCE = "register_comm_hook or register_builtin_comm_hook can only be called once."
"""PyTorch's own words."""
_AT_ONCE = (
    "DDP's communication hook runs at once and on one stream: what NCCL keeps of its tensors until "
    "they are sent, and cuBLAS' workspaces on streams of its futures, are not counted"
)


class Exchange:
    """How the buckets of one model are exchanged.

    Args:
        recorder: told of what is sent.
        ranks: they are exchanged among so many.
    """

    def __init__(self, recorder: Any, ranks: int) -> None:
        self.recorder = recorder
        self.ranks = ranks
        self.hook: Callable[[Any], Any] | None = None
        """The program's own, if it has one."""


def give(model: Any, state: object, hook: Callable[[Any, Any], Any]) -> None:
    """``register_comm_hook`` as a program calls it.

    Raises:
        RuntimeError: the model has a hook.
    """
    exchange: Exchange = model._comm_hooks[0][1]
    model._check_comm_hook(hook)
    if exchange.hook is not None:
        raise RuntimeError(_ONCE)
    exchange.hook = lambda bucket: hook(state, bucket)


def received(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations in strings
    """A bucket is full: what the others give is as large."""
    if state.hook is not None:
        state.recorder.assumptions[_AT_ONCE] = None
        with replaced(dist, "all_reduce", _with_result(dist.all_reduce)):
            return state.hook(bucket)
    buffer, recorder = bucket.buffer(), state.recorder
    recorder.traffic.all_reduced(recorder.position.step, buffer, state.ranks)
    return _done(buffer)


def _with_result(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """The work of the ``fake`` group has no tensor as its result, which hooks take."""

    def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        work = all_reduce(tensor, *args, **kwargs)
        return None if work is None else _Work(work, tensor)

    return run


class _Work:
    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def get_future(self) -> Any:
        return _done([self._tensor])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _done(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return future
