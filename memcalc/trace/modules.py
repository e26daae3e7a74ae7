"""Which module is at work; in backward, the one whose forward made the node that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.trace.ledger import Ledger
from memcalc.trace.torch_private.engine import (
    NO_BACKWARD,
    current_backward,
    current_node,
    next_node_number,
    node_number,
)


class Modules:
    """Follows modules by hooks, and nodes of the graph by their numbers."""

    def __init__(self, ledger: Ledger) -> None:
        """Say where modules are at work to this ledger, until it is given another."""
        self.ledger = ledger
        self._made_by: dict[tuple[int, int], str] = {}
        """The module that made a node, by the backward it was made in, and its number there."""
        self._forward_of: dict[int, int] = {}
        """The backward, if any, in which the nodes were made that a backward runs through."""
        self._last_forward = NO_BACKWARD
        self._stack: list[str] = []

    @contextmanager
    def follow(self, named: Iterable[tuple[str, torch.nn.Module]]) -> Iterator[None]:
        """Know which of these modules' code runs while the context lasts, by hooks on each."""
        hooks = []
        for name, module in named:
            hooks.append(module.register_forward_pre_hook(self._entering(name), prepend=True))
            hooks.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda *_: self.enter(name)

    def _leaving(self, *_: object) -> None:
        self.leave()

    def enter(self, name: str) -> None:
        """A module's forward begins."""
        self._stack.append(self.ledger.position.module)
        self.ledger.at(name)

    def leave(self) -> None:
        """It ends."""
        self.ledger.position.module = self._stack.pop()

    def locate(self) -> Any:
        """Name the module at work; in backward the one whose forward made the node."""
        node = current_node()
        task = current_backward()
        if node is None or self._stack:
            number = next_node_number()
            if node is None:
                self.ledger.streams.made(number)
            # An operator that makes no node comes after the one that has this number.
            self._made_by.setdefault((task, number - 1), self.ledger.position.module)
            self._last_forward = task
        else:
            # Inside a backward another may run: through what was recomputed in the first.
            last = self._last_forward if self._last_forward != task else NO_BACKWARD
            made_in = self._forward_of.setdefault(task, last)
            self.ledger.at(self._made_by.get((made_in, node_number(node)), ""))
        return node
