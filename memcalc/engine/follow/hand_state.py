"""Finds what a program without an optimizer keeps for its own updates, such as momentum."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import torch

from memcalc.engine.follow import variables
from memcalc.engine.notes import Notebook
from memcalc.records.trace import Component

_LOOKS = 3
"""Backward passes before which all variables are compared."""
Root = tuple[str, str]
"""A variable, and the file of its code."""


class _Tensor(NamedTuple):
    """A tensor at the beginning of a backward pass."""

    shape: torch.Size
    places: tuple[int, ...]
    version: int
    """How often it had been written."""


class _Look(NamedTuple):
    """Contents of variables at the beginning of a backward pass."""

    moments: list[int]
    held: dict[Root, list[_Tensor]]
    empty: set[Root]
    """Containers that held nothing."""

    def shapes(self, root: Root) -> list[torch.Size]:
        """Return the shapes of the tensors that a variable held."""
        return [one.shape for one in self.held.get(root, ())]


class HandState:
    """Compares variables from one backward pass to the next.

    State is there before the first pass, or an empty container for it is; it has tensors as large
    as weights, and is written or replaced between each two passes. It is no gradient and no update,
    which come after the first pass, and holds as many tensors as there are weights, where a batch
    is one.
    """

    def __init__(self, book: Notebook) -> None:
        self._book = book
        self._looks: list[_Look] = []
        self._roots: dict[Root, list[int]] = {}
        """Variables that hold state, and which of their tensors change."""

    def look(self, weights: Iterable[torch.Tensor], places: frozenset[int]) -> list[torch.Tensor]:
        """Label the optimizer state that variables hold as a backward pass begins.

        Args:
            weights: the parameters.
            places: where those lie that are new in every step.

        Returns:
            The state.
        """
        if len(self._looks) >= _LOOKS and not self._roots:
            return []
        held: dict[Root, list[torch.Tensor]] = {}
        empty: set[Root] = set()
        seen: set[tuple[Root, int]] = set()
        for one in variables.holdings(variables.running_scopes(), empty=empty):
            root = one.name, one.file
            # A function and its caller may call a tensor by one name.
            if (root, id(one.tensor)) not in seen:
                seen.add((root, id(one.tensor)))
                held.setdefault(root, []).append(one.tensor)
        if len(self._looks) < _LOOKS:
            known = list(weights)
            at = places.union(*map(self._book.addresses, known))
            now = {root: list(map(self._describe, several)) for root, several in held.items()}
            look = _Look(self._book.moments(), now, empty)
            self._compare(look, at, Counter(one.shape for one in known))
            self._looks.append(look)
        found = [
            several[place]
            for root, numbers in self._roots.items()
            for several in [held.get(root, [])]
            for place in numbers
            if place < len(several)
        ]
        self._book.name(Component.OPTIMIZER_STATE, found)
        return found

    def _describe(self, one: torch.Tensor) -> _Tensor:
        version = 0
        with contextlib.suppress(RuntimeError):  # Of inference mode.
            version = one._version
        return _Tensor(one.shape, tuple(self._book.addresses(one)), version)

    def _compare(self, now: _Look, weights: frozenset[int], shapes: Counter[torch.Size]) -> None:
        """Find variables whose tensors change as state does, and label earlier ones."""
        own = [s for s in now.held.values() if any(weights.intersection(t.places) for t in s)]
        # Each weight may have a variable of its own, and so its state.
        single = bool(own) and all(len(several) == 1 for several in own)
        for root, several in now.held.items() if self._looks else ():
            if root in self._roots or not self._has_same_shapes(root, now):
                continue
            before = self._looks[-1].held[root]
            changed = [
                number
                for number, (one, other) in enumerate(zip(several, before, strict=True))
                if one != other and one.places and not weights.intersection(one.places)
            ]
            alike = (Counter(several[number].shape for number in changed) & shapes).total()
            if alike and (single or 2 * alike >= shapes.total()):
                self._roots[root] = changed
                self._label_earlier(root, changed)

    def _has_same_shapes(self, root: Root, now: _Look) -> bool:
        """Return True if a variable held the same shapes at earlier backwards."""
        first, last = self._looks[0], self._looks[-1]
        return last.shapes(root) == now.shapes(root) and (
            root in first.empty or first.shapes(root) == now.shapes(root)
        )

    def _label_earlier(self, root: Root, changed: list[int]) -> None:
        """Label the state that a variable held at earlier backward passes."""
        for look in self._looks:
            held = look.held.get(root, [])
            places = [at for number in changed[: len(held)] for at in held[number].places]
            self._book.name_at(Component.OPTIMIZER_STATE, places, look.moments)
