"""The mode in which a script's tensors on the GPU are fake."""

from __future__ import annotations

import threading
from typing import Any

import torch

from memcalc.trace.torch_private.fake_mode import SimulatedMode
from memcalc.trace.torch_private.names import ask


class Mode(SimulatedMode):
    """Fake tensors on a GPU, among them jagged ones."""

    def share(self) -> None:
        """Serve several threads from now on; no kernel runs, and this thread alone is inside."""
        if not isinstance(self, _Shared):
            state = vars(self)
            inside, entered = state.pop("in_kernel_invocation"), state.pop("enter_stack")
            self._own = threading.local()
            self.__class__ = _Shared
            self.in_kernel_invocation, self.enter_stack = inside, entered

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """What stands for the lengths of a jagged tensor's rows: as without fake tensors.

        A fake mode's own is a symbol to compile with.
        """
        if nt_tensor_id is None:
            nt_tensor_id = self.nt_tensor_id_counter
            self.nt_tensor_id_counter += 1
        node = ask("torch.nested._internal.nested_int:NestedIntNode")
        return torch.SymInt(node(nt_tensor_id, 1))


class _Shared(Mode):
    """Where a kernel runs on tensors without memory, fake ones say that they are such.

    They say so to the thread in which it runs, and to no other.
    """

    @property
    def in_kernel_invocation(self) -> bool:
        """A kernel runs in this thread."""
        return getattr(self._own, "inside", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, inside: bool) -> None:
        self._own.inside = inside

    @property
    def enter_stack(self) -> list[Any]:
        """How often this thread has entered the mode."""
        found: list[Any] | None = getattr(self._own, "entered", None)
        if found is None:
            found = self._own.entered = []
        return found

    @enter_stack.setter
    def enter_stack(self, entered: list[Any]) -> None:
        self._own.entered = entered
