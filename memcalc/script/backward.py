"""Backward that returns when the engine's thread has let go of what its last node was given.

That thread drops it after it has said that backward is done. To drop a tensor that Python knows, as
all are where a dispatch mode sees them, it needs the GIL, which the program holds by then: without
a mode nothing waits. So one node more goes through the thread's queue, which makes nothing.

It goes before the first backward as well: what ``torch.tensor`` and ``torch.as_tensor`` do with a
number for the GPU is a setting of each thread (``lift_from_host``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.torch_private.dispatch import lift_from_host, untransformed
from memcalc.trace.torch_private.engine import current_node


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        lift_from_host(True)
        return grads[0]


class _Last:
    """The node that goes through the queue, made when it can be."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        """By stream: a graph that is captured on one takes no node of another."""

    def before_the_first(self, engine: Callable[..., Any]) -> None:
        if not self._made:
            self.run(engine)

    def run(self, engine: Callable[..., Any]) -> None:
        # A tensor that is made inside of ``torch.func`` is of that level alone.
        with untransformed():
            begin, end, grad = self._of(torch.cuda.current_stream().cuda_stream)
            engine((end,), (grad,), True, False, (begin,), True, accumulate_grad=False)

    def _of(self, stream: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where that node's graph begins and ends, and the gradient that it is given."""
        if stream not in self._made:
            with torch.enable_grad():
                # Of no elements, so of no memory.
                begin = torch.empty(0, device="cuda", requires_grad=True)
                end = _Nothing.apply(begin)  # type: ignore[no-untyped-call]
                self._made[stream] = begin, end, torch.empty(0, device="cuda")
        return self._made[stream]


def install(patches: Patches) -> None:
    """Every call of the engine from outside of it ends with that node."""
    last = _Last()

    def around(original: Any, begins: Any, *args: Any, **kwargs: Any) -> Any:
        if current_node() is not None or not any(map(_on_device, begins)):
            return original(begins, *args, **kwargs)
        last.before_the_first(original)
        out = original(begins, *args, **kwargs)
        last.run(original)
        return out

    patches.wrap(torch.autograd.graph, "_engine_run_backward", around, also=(torch.autograd,))


def _on_device(begin: Any) -> bool:
    return isinstance(begin, torch.Tensor) and begin.device.type == "cuda"
