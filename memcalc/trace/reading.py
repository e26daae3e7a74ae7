"""What a program reads from the simulated device, and what else depends on values."""

from __future__ import annotations

import re
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.kernels.formulas import KernelCall
from memcalc.trace import device
from memcalc.trace.ledger import Ledger
from memcalc.trace.operators import counted
from memcalc.trace.operators.counted import ALL_NONZERO, COUNTED, NONZERO, every_position
from memcalc.trace.reads import compared_with_zeros, read_as_zero
from memcalc.trace.recipes import UnansweredError
from memcalc.trace.scratch.kernels import KernelMemory
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.torch_private.dispatch import TorchDispatchMode
from memcalc.trace.values import Values


class Reading(TorchDispatchMode):
    """A dispatch mode that answers for values: as far as the program says them, else by a rule."""

    def __init__(
        self, ledger: Ledger, kernel_memory: KernelMemory | None, symbols: Symbols | None
    ) -> None:
        """Know of no values yet; arguments as for a recorder."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.position = ledger.position
        self.assumptions: dict[str, None] = {}
        self._symbols = symbols
        self._kernel_memory = kernel_memory
        self._values = Values()

    def _take(self, call: KernelCall) -> None:
        """Write down what a kernel takes by itself."""
        raise NotImplementedError

    def said_of_values(self) -> tuple[str, ...]:
        """What was assumed of values, beside where they were read."""
        return self._values.said()

    def assume(self, said: str) -> None:
        """Add to what was assumed."""
        self.assumptions[said] = None

    def _places_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where a tensor is not zero: as far as the program says it, else everywhere."""
        chosen = self._chosen(tensor)
        out = self._found(tensor, tensor.numel() if chosen is None else chosen)
        if chosen is None:
            self.assumptions[f"in {self._place()} {ALL_NONZERO}"] = None
        self._values.remember(every_position if chosen is None else NONZERO, (tensor,), {}, out)
        return out

    def _found(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        """So many positions, as the device makes them."""
        with self:
            if self._kernel_memory is not None:
                return counted.nonzero(self._take, tensor, count)
            shape = count, tensor.dim()
            return torch.empty(shape, dtype=torch.long, device=device.NAME)

    def _chosen(self, mask: torch.Tensor) -> int | None:
        """How many entries of a mask are not zero, where the program itself says it."""
        if self._symbols is not None:
            return None
        return 0 if compared_with_zeros() else self._values.chosen(mask)

    def _read(self, tensor: torch.Tensor) -> bool | int | float:
        """A value that the program reads from the device."""
        try:
            if compared_with_zeros():
                raise UnansweredError
            value = self._value(tensor)
            if device.NAME == "cpu" and tensor.dtype.is_floating_point:
                value = value or read_as_zero(tensor.dtype)
        except UnansweredError:
            value = read_as_zero(tensor.dtype)
        self._note_read()
        return value

    def _note_read(self) -> None:
        said = f"values read from the device in {self._place()} are taken to be those of zeros"
        self.assumptions[said] = None

    def _value(self, tensor: torch.Tensor) -> bool | int | float:
        """The value, the same wherever symbols stand for."""
        if self._symbols is None:
            return self._values.read(tensor)
        first, *others = (
            self._values.read(tensor, at, which) for which, at in enumerate(self._symbols.numbers)
        )
        if any(other != first for other in others):
            raise EstimateError("the program decides by a value that depends on its sizes")
        return first

    def _by_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator whose result, or its size, depends on values: as it is with those known.

        Raises:
            UnansweredError: it cannot be worked out.
        """
        self._note_read()
        made = self._values.run(func, args, kwargs)
        out = NotImplemented
        if func in COUNTED and self._kernel_memory is not None:
            with self:
                out = COUNTED[func](self._take, made, *args, **kwargs)
        if out is NotImplemented:
            with self:
                out = _like(made)
        self._values.remember(func, args, kwargs, out)
        return out

    def _place(self) -> str:
        """The module at work, all of its like in one; outside of all, the phase."""
        return re.sub(r"\.\d+", ".*", self.position.module) or self.position.phase.value


def _like(made: Any) -> Any:
    """The same on the device."""
    if isinstance(made, torch.Tensor):
        return torch.empty(made.shape, dtype=made.dtype, device=device.NAME)
    return tuple(map(_like, made)) if isinstance(made, list | tuple) else made
