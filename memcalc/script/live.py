"""Simulates live objects: a block of code, or a module with its optimizer.

It runs in another process over the stub driver.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from memcalc.children import exit_reason
from memcalc.engine import source_lines
from memcalc.errors import EstimateError, UsageError, unknown
from memcalc.estimation.kept import Traced, keep
from memcalc.estimation.question import look_up
from memcalc.records.prediction import Prediction
from memcalc.script import pickling
from memcalc.script.simulate import make_plan, run_work

EMPTY = "Nothing was on the GPU: does the code use torch.device('cuda')?"


class Simulation:
    """A simulated GPU for the code inside a ``with``, and afterwards its prediction.

    The code runs in another process: names that it assigns are not seen behind the block.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {key: value for key, value in settings.items() if key != "weights"}
        self._found: Traced | None = None
        self._error: BaseException | None = None
        self._entered = False
        self._undo: Callable[[], None] = lambda: None

    def __enter__(self) -> Simulation:
        self._entered = True
        plan = make_plan([source_lines.find_line() or sys.argv[0] or "python"], **self._settings)
        frame = sys._getframe(1)
        body = pickling.body_at(frame)
        self._found, self._error = run_work(look_up(plan), pickling.dump("the block", body))
        self._undo = pickling.skip(frame)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        self._undo()
        if self._found is not None:
            keep(self._found)
        if self._error is not None:
            raise self._error
        return kind is pickling.Skipped

    @property
    def prediction(self) -> Prediction:
        """The code's phases, components and peak, and whether it fits.

        Raises:
            EstimateError: the code has not ended, or put nothing on the GPU.
        """
        if self._found is None:
            raise EstimateError(EMPTY if self._entered else "The simulated code has not run.")
        return self._found.prediction

    @property
    def peak(self) -> Any:
        """The levels at the peak in bytes, such as ``reserved``; see ``prediction.peak``."""
        return self.prediction.peak

    def __str__(self) -> str:
        return str(self._found.prediction) if self._found is not None else repr(self)

    def _repr_html_(self) -> str | None:
        return self._found.prediction._repr_html_() if self._found is not None else None


def run_in_child(work: Callable[[], Any], settings: Mapping[str, Any], name: str) -> Traced | None:
    """Call a function on a simulated GPU in another process; this one does not change.

    Returns:
        Its prediction and trace, or None if it used no GPU.

    Raises:
        EstimateError: the process died.
        Exception: what the code raised.
    """
    found, error = run_work(look_up(make_plan([name], **settings)), pickling.dump(name, work))
    if error is not None:
        raise error
    if found is not None:
        keep(found)
    return found


_OF_MODULES = ("gpu", "torch", "alloc_conf")


def estimate_module(
    module: torch.nn.Module,
    *,
    optimizer: Any = None,
    loss: Callable[..., torch.Tensor] | None = None,
    inputs: Any = None,
    targets: Any = None,
    steps: int = 3,
    **settings: Any,
) -> Prediction:
    """Predict the GPU memory of training a module object; see ``memcalc.estimate``."""
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"A {type(module).__name__} is no model: give a name or a torch.nn.Module."
        )
    if strange := sorted(settings.keys() - set(_OF_MODULES)):
        known = ("optimizer", "loss", "inputs", "targets", "steps", *_OF_MODULES)
        hint = f"choose from {', '.join(known)}."
        raise unknown("setting of a module", strange[0], known, hint=hint)
    if inputs is None:
        raise UsageError("Give inputs: a batch as the module is called with it.")
    work = functools.partial(_train, module, optimizer, loss, inputs, targets, steps)
    try:
        found = run_in_child(work, {**settings, "steps": 0}, type(module).__name__)
    except (EstimateError, UsageError):
        raise
    except SystemExit as error:
        raise EstimateError(
            exit_reason.serialize_error(error, "run of the module", "")["error"]
        ) from None
    except Exception as error:
        raise EstimateError(f"{type(error).__name__}: {error}") from error
    if found is None:
        raise EstimateError(EMPTY)
    return found.prediction


def _train(
    module: torch.nn.Module,
    optimizer: Any,
    loss: Callable[..., torch.Tensor] | None,
    inputs: Any,
    targets: Any,
    steps: int,
) -> None:
    """Train a module for some steps; arguments as for ``estimate_module``."""
    model = module.to("cuda")
    stepper = _prepare_optimizer(optimizer, model)
    given, wanted = on_gpu(inputs), on_gpu(targets)
    for _ in range(steps):
        _compute_loss(loss, _call(model, given), wanted).backward()
        if stepper is None:
            model.zero_grad()
            continue
        stepper.step()
        stepper.zero_grad()


def _prepare_optimizer(given: Any, model: torch.nn.Module) -> Any:
    """Return the optimizer, made by a function of parameters if given, its state on the GPU."""
    if given is None:
        return None
    if not isinstance(given, torch.optim.Optimizer):
        return given([p for p in model.parameters() if p.requires_grad])
    for state in given.state.values():
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor) and value.dim():
                state[key] = value.to("cuda")
    return given


def on_gpu(value: Any) -> Any:
    """Move a batch to the GPU: tensors, and dicts, lists and tuples of them."""
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, Mapping):
        return {key: on_gpu(item) for key, item in value.items()}
    return tuple(on_gpu(item) for item in value) if isinstance(value, list | tuple) else value


def _call(model: torch.nn.Module, given: Any) -> Any:
    """Call the model with a batch: keywords of a dict, arguments of a tuple, or one tensor."""
    if isinstance(given, Mapping):
        return model(**given)
    return model(*given) if isinstance(given, tuple) else model(given)


def _compute_loss(loss: Callable[..., torch.Tensor] | None, out: Any, wanted: Any) -> torch.Tensor:
    """Return the loss of the model's output: by a function, its ``loss``, or a scalar output."""
    if loss is not None:
        return loss(out) if wanted is None else loss(out, wanted)
    found = getattr(out, "loss", out)
    if isinstance(found, torch.Tensor) and found.dim() == 0:
        return found
    raise UsageError(
        "The module returns no loss: give loss=, a function of its output (and of targets=)."
    )
