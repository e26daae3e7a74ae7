"""By what libraries choose another way for fake tensors, and how they are kept from it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.torch_private.names import ask

_function_modes: Callable[[], list[Any]] = ask("torch.overrides:_get_current_function_mode_stack")
_DeviceContext: Any = ask("torch.utils._device:DeviceContext")
_foreach_types: list[type] = ask("torch.optim.optimizer:_foreach_supported_types")


def wrap_module_apply(
    wrap: Callable[[Callable[..., torch.nn.Module]], Callable[..., torch.nn.Module]],
) -> None:
    """Replace what ``nn.Module.to`` and its like go through by what ``wrap`` makes of it."""
    original = ask("torch.nn:Module._apply")
    torch.nn.Module._apply = wrap(original)  # type: ignore[method-assign]


def default_place() -> torch.device | None:
    """Where tensors are made that no device is named for; ``None``: on the host."""
    modes = reversed(_function_modes())
    return next((mode.device for mode in modes if isinstance(mode, _DeviceContext)), None)


def script_with(context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let TorchScript compile inside a context, for the life of the process.

    What it compiles looks names up in its caller's frame, which is one further up then.
    """
    script = importlib.import_module("torch.jit._script")
    compile_: Callable[..., Any] = ask("torch.jit._script:_script_impl")

    def run(*args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
        with context():
            return compile_(*args, _frames_up=_frames_up + 1, **kwargs)

    setattr(script, "_script_impl", run)  # noqa: B010


def take_fake_tensors_for_real() -> None:
    """Let optimizers and clipping choose foreach for fake tensors as for real ones.

    They choose by exact tensor type and device.
    """
    clip_grad = importlib.import_module("torch.nn.utils.clip_grad")
    ask("torch.nn.utils.clip_grad:_has_foreach_support")
    _foreach_types.append(FakeTensor)
    setattr(clip_grad, "_has_foreach_support", lambda _, device: device.type != "cpu")  # noqa: B010


def foreach_takes(kind: type) -> None:
    """Let optimizers choose foreach for tensors of this type too."""
    _foreach_types.append(kind)


def let_transformers_run_eagerly() -> None:
    """Make masks as an eager run makes them, not as one that is traced into a graph.

    transformers (utils/import_utils.py, ``is_tracing``) takes a fake tensor for a sign of that.
    """
    from transformers.utils import import_utils

    import_utils.is_fake_tensor = lambda _: False


def let_compiled_run_eagerly() -> None:
    """What ``torch.compile`` has wrapped runs as it was, for the life of the process."""
    setattr(importlib.import_module("torch._dynamo.config"), "disable", True)  # noqa: B010


def is_compiled(module: torch.nn.Module) -> bool:
    """``torch.compile`` has wrapped it, or ``Module.compile`` did."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def transformers_runs_eagerly(tensor: torch.Tensor) -> bool:
    """``let_transformers_run_eagerly`` has done what it should, or there is no transformers."""
    loaded = sys.modules.get("transformers.utils.import_utils")
    is_tracing = getattr(loaded, "is_tracing", None)
    return loaded is None or (is_tracing is not None and not is_tracing(tensor))


def wrap_foreach_step(name: str, wrap: Callable[[Any], Any]) -> None:
    """Put something around what makes an optimizer's step by foreach operators.

    Args:
        name: of the optimizer's module, such as "adam".
        wrap: is given the function, and returns what takes its place.
    """
    module, step = f"torch.optim.{name}", f"_multi_tensor_{name}"
    setattr(ask(module), step, wrap(ask(f"{module}:{step}")))


PROJECTIONS = ("_in_projection_packed", "_in_projection")
"""Functions of ``torch.nn.functional`` that make queries, keys and values of what attends."""
REST = sys.maxsize
"""Where a slice ends that names no end."""
