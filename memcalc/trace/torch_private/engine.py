"""Where autograd is: its nodes, their numbers, and what runs backward."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.autograd import forward_ad

from memcalc.trace.torch_private.names import ask

_tensor_users: Callable[[torch.Tensor], int] = ask("torch:Tensor._use_count")
_next_sequence_number: Callable[[], int] = ask("torch._C:_autograd._get_sequence_nr")
current_node: Callable[[], Any] = ask("torch._C:_current_autograd_node")
"""The node of autograd's graph that backward is at, or ``None``."""
current_backward: Callable[[], int] = ask("torch._C:_current_graph_task_id")
"""A number for each call of backward, the present one's."""
NO_BACKWARD = -1
"""What ``current_backward`` says outside of all."""
_HELD_BY_ENGINE = 4
"""Users of a gradient that the engine alone holds, as a dispatch mode sees it where it is summed:
the engine, its call, the call's stack and the Python object (2.13)."""


def is_held_by_engine_alone(tensor: torch.Tensor) -> bool:
    """Nobody else, such as a variable of the program or another node's input, has this gradient."""
    return _tensor_users(tensor) <= _HELD_BY_ENGINE


def next_node_number() -> int:
    """The number that the next node of this thread's autograd graph gets."""
    return _next_sequence_number()


def node_number(node: Any) -> int:
    """The number of a node of autograd's graph: of the forward that made it."""
    number: int = node._sequence_nr()
    return number


def input_shape(node: Any) -> tuple[int, ...]:
    """The shape of the gradient that a node of autograd's graph is given."""
    return tuple(node._input_metadata[0].shape)


_WRAPPERS = (
    *("torch/_compile.py", "torch/_dynamo/eval_frame.py"),
    *("memcalc/trace/recorder.py", "memcalc/trace/routes.py", "memcalc/script/recorder.py"),
)
"""Files whose functions stand between C++ and whoever asks for an operator."""
_ENGINE = "_engine_run_backward"
"""What calls the engine (torch/autograd/graph.py), in the thread where it runs CPU tensors."""


def called_from_engine(frame: FrameType | None) -> bool:
    """Was this frame's dispatch mode called by the autograd engine, not by Python code?

    Formulas that run forward derivatives through a backward are TorchScript, and as frameless.
    """
    if forward_ad._current_level >= 0:
        return False
    while frame is not None:
        mode = frame.f_code.co_name == "__torch_dispatch__"
        if not mode and not frame.f_code.co_filename.endswith(_WRAPPERS):
            return frame.f_code.co_name == _ENGINE
        frame = frame.f_back
    return True


def wrap_backward(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace what every backward goes through by what ``wrap`` makes of it."""
    wrapped = wrap(ask(f"torch.autograd.graph:{_ENGINE}"))
    for module in ("torch.autograd", "torch.autograd.graph"):
        setattr(importlib.import_module(module), _ENGINE, wrapped)
