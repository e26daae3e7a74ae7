"""Builds the real optimizer of a choice."""

import contextlib
import fnmatch
import functools
import importlib
import inspect
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.errors import UsageError
from memcalc.imports import is_named, line, load
from memcalc.registry.build_arguments import LEARNING_RATE, list_arguments
from memcalc.registry.row import Choice


def build(
    choice: Choice,
    model: torch.nn.Module,
    *,
    groups: list[Any] | None = None,
    wide_embeddings: bool = False,
    only: torch.nn.Parameter | None = None,
    through: Callable[..., torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """Build the optimizer of a choice over the parameters of a model that train.

    They are on their device already: the ``groups``, or ``only`` this one, else all in one
    group. ``wide_embeddings`` keeps the 8-bit states of embeddings in 32 bit, as the Trainer does;
    ``through`` makes it, from the class, parameters and arguments, in place of the class itself.

    Raises:
        UsageError: its package is not installed, or the class refuses its arguments.
    """
    _forget_overrides(choice, model)
    cls = _import_class(choice)
    arguments = _learning_rate(choice, cls)
    for key, value in list_arguments(choice).items():
        arguments[key] = getattr(torch, str(value)) if key.endswith("_dtype") else value
    if choice.row.name == "transformers.adafactor" and "relative_step" not in choice.given:
        arguments |= {"scale_parameter": False, "relative_step": False}
    if groups is None:
        groups = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        over = groups if only is None else [only]
        optimizer: torch.optim.Optimizer = (
            cls(over, **arguments) if through is None else through(cls, over, **arguments)
        )
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise UsageError(f"{choice.row.implementation} refuses this: {line(error)}.") from None
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"{choice.row.implementation} is no torch.optim.Optimizer.")
    needed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # A layout may have wrapped it, and a wrapper's step takes everything.
    step: Any = optimizer.step
    if through is not None and isinstance(cls, type):
        step = functools.partial(getattr(cls, "step", step), optimizer)
    takes = inspect.signature(step).parameters.values()
    if any(one.default is one.empty and one.kind in needed for one in takes):
        raise UsageError(
            f"{choice.row.implementation} needs a closure, which memcalc's loops do not pass: "
            f"simulate a script that does (memcalc simulate -- python train.py)."
        )
    if only is None:
        _keep_in_32bit(choice, optimizer, model, wide_embeddings)
    return optimizer


def _learning_rate(choice: Choice, cls: Any) -> dict[str, Any]:
    """Return ``lr`` as keyword arguments if the optimizer's class takes it, else {}."""
    if not choice.row.foreign:
        return {"lr": LEARNING_RATE}
    try:
        takes = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = any(one.name == "lr" or one.kind is one.VAR_KEYWORD for one in takes)
    return {"lr": LEARNING_RATE} if named else {}


def _import_class(choice: Choice) -> Any:
    if choice.row.foreign:
        path = choice.row.implementation
        return load(path if is_named(path) else ":".join(path.rpartition(".")[::2]))
    module_name, _, name = choice.row.implementation.rpartition(".")
    try:
        # bitsandbytes prints notices about kernels it does not find.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return getattr(importlib.import_module(module_name), name)
    except ImportError as error:
        package = choice.row.extra or choice.row.package
        raise UsageError(
            f"{choice.name} needs {package}: pip install {package} ({error})."
        ) from None
    except AttributeError:
        raise UsageError(f"{module_name} has no optimizer {name}.") from None


def _forget_overrides(choice: Choice, model: torch.nn.Module) -> None:
    """Drop the settings that bitsandbytes keeps by address for parameters of earlier models.

    Overrides that modules of this model asked for (``StableEmbedding``) are kept by module, and
    stay.
    """
    if choice.row.package != "bitsandbytes":
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from bitsandbytes.optim import GlobalOptimManager
    manager = GlobalOptimManager.get_instance()
    manager.index2config.clear()
    for parameter in model.parameters():
        manager.pid2config.pop(id(parameter), None)


def _keep_in_32bit(
    choice: Choice, optimizer: torch.optim.Optimizer, model: torch.nn.Module, wide: bool
) -> None:
    """Make bitsandbytes keep states in 32 bit: of embeddings, and of named parameters."""
    if choice.row.package != "bitsandbytes" or choice.args.get("optim_bits") != 8:
        return
    from bitsandbytes.optim import GlobalOptimManager

    manager = GlobalOptimManager.get_instance()
    manager.register_parameters(optimizer.param_groups)
    for parameter in _list_32bit(choice, model, wide):
        manager.override_config(parameter, "optim_bits", 32)


def _list_32bit(choice: Choice, model: torch.nn.Module, embeddings: bool) -> Iterator[torch.Tensor]:
    patterns = [p for p in str(choice.args.get("32bit") or "").split(",") if p]
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            yield parameter
    if embeddings:
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                yield module.weight
