"""Detects the phase of a user's training loop without changing it.

Forward begins when the outermost module is called with gradients on, backward when autograd's
``backward`` is; what follows until the optimizer's step has ended is the step phase, and from
there to the next forward is where gradients are cleared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from memcalc.records.trace import Phase


class Observer(Protocol):
    """An observer."""

    def enters(self, phase: Phase) -> None:
        """The loop goes on to this phase; step: it follows backward, the update comes later."""
        ...

    def called(self, model: torch.nn.Module, inputs: dict[str, Any]) -> None:
        """The outermost module is called."""
        ...

    def updates(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer begins its step; all gradients are there."""
        ...

    def updated(self) -> None:
        """An optimizer has ended its step."""
        ...


class Hooks:
    """Follows the loops of this process from ``attach`` to ``detach``.

    Args:
        observer: told of every change.
        model: whose calls are forward; ``None``: whatever module is outermost.
        optimizer: whose steps count; ``None``: any.
    """

    def __init__(
        self,
        observer: Observer,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._observer = observer
        self._model = model
        self._optimizer = optimizer
        self._depth = 0
        self._in_backward = False
        self._handles: list[Any] = []
        self._backward: Callable[..., None] | None = None

    def attach(self) -> None:
        """Begin to follow."""
        if self._model is not None:
            self._handles = [
                self._model.register_forward_pre_hook(self._opens, with_kwargs=True),
                self._model.register_forward_hook(self._closes, always_call=True),
            ]
        else:
            self._handles = [
                modules.register_module_forward_pre_hook(self._opens),
                modules.register_module_forward_hook(self._closes, always_call=True),
            ]
        self._handles += [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._watched(torch.autograd.backward)

    def detach(self) -> None:
        """Leave everything as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._backward is not None:
            torch.autograd.backward = self._backward
            self._backward = None

    def _opens(
        self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any] | None = None
    ) -> None:
        self._depth += 1
        # Checkpointing calls modules in backward; evaluation calls them without gradients.
        if self._depth == 1 and torch.is_grad_enabled() and not self._in_backward:
            by_place = {str(place): value for place, value in enumerate(args)}
            self._observer.called(module, {**by_place, **(kwargs or {})})
            self._observer.enters(Phase.FORWARD)

    def _closes(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _watched(self, backward: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(backward)
        def watched(*args: Any, **kwargs: Any) -> None:
            if self._in_backward:
                return backward(*args, **kwargs)
            self._in_backward = True
            self._observer.enters(Phase.BACKWARD)
            try:
                return backward(*args, **kwargs)
            finally:
                self._in_backward = False
                self._observer.enters(Phase.STEP)

        return watched

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None or optimizer is self._optimizer:
            self._observer.updates(optimizer)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None or optimizer is self._optimizer:
            self._observer.updated()
