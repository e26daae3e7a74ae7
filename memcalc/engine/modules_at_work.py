"""Says which module is at work: in forward, in a forward that is made again, in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memcalc.engine.host_view import tensors_in
from memcalc.engine.notes import Notebook
from memcalc.records.trace import Component


class AtWork:
    """The modules whose forward runs, the innermost last.

    Args:
        book: told of each.
    """

    def __init__(self, book: Notebook) -> None:
        self._book = book
        self._stack = [""]
        self._begun: list[int] = []
        """When the outermost began."""

    @property
    def depth(self) -> int:
        """How many there are."""
        return len(self._stack) - 1

    def enters(self, path: str | None, args: Any, *, again: bool) -> None:
        """A module begins; ``again``: inside the backward of one, as checkpointing has it.

        Args:
            path: of the module; ``None``: of the one around it.
            args: of its forward.
            again: it is called in backward.
        """
        if not self.depth:
            self._begun = self._book.moments()
            self._stack[0] = self._book.at_work() if again else ""
        tag(args, self._stack[-1], self._book.mark)
        self._stack.append(self._stack[-1] if path is None else path)
        self._book.mark(self._stack[-1])

    def leaves(self, out: Any, *, keeps: bool) -> None:
        """A module ends; ``keeps``: what the outermost leaves behind is for backward."""
        if not self.depth:
            return  # It began before anybody followed.
        tag(out, self._stack.pop(), self._book.mark)
        self._book.mark(self._stack[-1])
        if not self.depth:
            self._stack[0] = ""
            if keeps:
                self._book.guess(Component.ACTIVATIONS, self._begun)


def tag(value: Any, path: str, mark: Callable[[str], None]) -> None:
    """When backward reaches what made these tensors, say that this module is at work.

    Who says so first is right: the innermost module returns a tensor first.
    """
    for tensor in tensors_in((value,)):
        node = tensor.grad_fn
        # The stubs of PyTorch take the dictionary for a method.
        known: Any = node.metadata if node is not None else None
        if node is not None and "memcalc" not in known:
            known["memcalc"] = path
            node.register_prehook(lambda _: mark(path))
