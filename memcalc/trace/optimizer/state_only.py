"""An optimizer known by its state alone, for those whose code cannot run on the simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memcalc.records.model import OptimizerState, Place, StateTensor

Update = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], None]
"""What an update of one parameter does to memory beside its state, given that state."""

_RATE = {"lr": 0.0}
"""Schedulers look for one."""


class StateOnlyOptimizer(torch.optim.Optimizer):
    """Makes the state that the registry's closed form names, in its order, and updates nothing."""

    def __init__(
        self,
        state: OptimizerState,
        parameters: Mapping[str, torch.nn.Parameter],
        update: Update | None = None,
        *,
        groups: list[Any] | None = None,
        anew: Callable[[str, torch.Tensor], OptimizerState] | None = None,
    ) -> None:
        """Make it.

        Args:
            state: of all parameters.
            parameters: by name.
            update: what an update does beside.
            groups: those it is over, where it has a share of them; ``None``: all in one.
            anew: the state of a parameter that takes the place of some of those, such as a flat
                part of them, or that a wrapper has cut down to this rank's part, and its name.
        """
        super().__init__(list(parameters.values()) if groups is None else groups, _RATE)
        self._tensors: dict[str, list[StateTensor]] = {"": []}
        for wanted in state.tensors:
            self._tensors.setdefault(wanted.parameter, []).append(wanted)
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._sizes = {parameter: parameter.numel() for parameter in parameters.values()}
        self._update = update
        self._anew = anew

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make state for parameters that have a gradient and no state yet, and update them."""
        for name, parameter in self._named():
            if parameter.grad is None:
                continue
            if any(wanted.dtype == "uint8" for wanted in self._tensors.get(name, ())):
                self._make("", parameter, "shared")
            self._make(name, parameter, parameter)
            if self._update is not None:
                self._update(parameter, self.state[parameter])

    def restore(self) -> None:
        """Make all state, as loading a checkpoint does."""
        named = list(self._named())
        self._make("", named[0][1], "shared")
        for name, parameter in named:
            self._make(name, parameter, parameter)

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What it is over by now, by name: an engine may have put parts of its own there."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if self._anew is not None and self._sizes.get(parameter) != parameter.numel():
                    self._describe(parameter, self._anew)
                yield self._names[parameter], parameter

    def _describe(
        self, parameter: Any, anew: Callable[[str, torch.Tensor], OptimizerState]
    ) -> None:
        """Know the state of what it is over by now."""
        name = self._names.setdefault(parameter, f"part.{len(self._names)}")
        self._sizes[parameter] = parameter.numel()
        self._tensors[name] = []
        for wanted in anew(name, parameter).tensors:
            known = self._tensors.setdefault(wanted.parameter, [])
            if wanted not in known:
                known.append(wanted)

    def _make(self, name: str, near: torch.Tensor, owner: Any) -> None:
        """Make the state of one parameter; shared state is kept under a name of its own."""
        for wanted in self._tensors.get(name, ()):
            if wanted.place is Place.DEVICE and wanted.name not in self.state[owner]:
                # Made through the parameter, so that the state is known to belong to its layer.
                dtype = getattr(torch, wanted.dtype)
                self.state[owner][wanted.name] = near.new_empty(wanted.numel, dtype=dtype)


def bitsandbytes_update(parameter: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
    """Parameter and gradient are put in a row for good; LAMB and LARS take a norm.

    Source: bitsandbytes 0.50.2, optim/optimizer.py, ``update_step``, and functional.py,
    ``optimizer_update_32bit``.
    """
    if not parameter.is_contiguous():
        parameter.data = parameter.data.contiguous()
    if parameter.grad is not None:
        parameter.grad = parameter.grad.contiguous()
    if "unorm_vec" in state:
        torch.norm(parameter.data.float())
