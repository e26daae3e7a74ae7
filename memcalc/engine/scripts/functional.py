"""Weights that no module holds: those of ``torch.func.functional_call``, and plain tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from memcalc.engine import torch_internals as internals
from memcalc.engine.patches import Patches
from memcalc.engine.scripts.counters import Counters
from memcalc.engine.scripts.models import Models
from memcalc.records.trace import Component

_PLAIN = 0
"""Key of tensors that are trained without a module."""
_MOST = 100_000
"""Nodes of a graph that are looked at for its leaves."""


class Functional:
    """Follows weights that are replaced by new tensors in every step.

    Args:
        counters: told what is a weight or a gradient.
        models: told of every update.
    """

    def __init__(self, counters: Counters, models: Models) -> None:
        self._counters, self._models = counters, models
        self._given: dict[int, frozenset[int]] = {}
        """Where the weights lie that a module was given last."""

    def install(self, patches: Patches) -> None:
        """Follow from now on."""
        patches.wrap(torch.func, "functional_call", self._called)

    def _called(self, original: Any, module: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            buffers = {name for name, _ in module.named_buffers()}
            parts = [given] if isinstance(given, Mapping) else given
            self._are_weights(
                id(module),
                (one for part in parts for name, one in part.items() if name not in buffers),
            )
        return original(module, given, *args, **kwargs)

    def _are_weights(self, key: int, tensors: Iterable[Any]) -> None:
        leaves = [leaf for one in tensors if (leaf := internals.outer_leaf(one)) is not None]
        found = frozenset(address for leaf in leaves for address in self._counters.addresses(leaf))
        if not found:
            return  # Inner steps of meta-learning: they are parts of a graph.
        if self._given.get(key, found) != found:
            self._models.touch()
        self._given[key] = found
        self._counters.name_at(Component.WEIGHTS, list(found))

    def look_for_plain(self, roots: Any) -> None:
        """A program without modules and optimizers trains the leaves that a backward reaches."""
        leaves = list(_leaves(one.grad_fn for one in _tensors(roots)))
        self._are_weights(_PLAIN, leaves)
        self._models.adopt(leaves)

    def gradients(self, given: Any, found: Any) -> None:
        """What ``torch.autograd.grad`` returns for weights are gradients.

        Args:
            given: its ``inputs``.
            found: its result.
        """
        known = {at for one in self._models.parameters() for at in self._counters.addresses(one)}
        known = known.union(*self._given.values())
        named = []
        for one, gradient in zip(_tensors(given), _tensors(found), strict=False):
            leaf = internals.outer_leaf(one)
            if leaf is not None and known.intersection(self._counters.addresses(leaf)):
                named.append(internals.behind(gradient))
        self._counters.name(Component.GRADIENTS, named)


def _tensors(given: Any) -> list[torch.Tensor]:
    """The tensors that are given to autograd, or come from it, in whatever way."""
    several = [given] if isinstance(given, torch.Tensor) else given
    listed = several.values() if isinstance(several, Mapping) else several
    return [one for one in listed if isinstance(one, torch.Tensor)]


def _leaves(nodes: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors that a backward from these nodes accumulates gradients in."""
    waiting = [node for node in nodes if node is not None]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [other for other, _ in node.next_functions if other is not None]
