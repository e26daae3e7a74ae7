"""Follows weights that no module has, or that a program replaces by new tensors in every step."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from memcalc.engine import torch_internals as internals
from memcalc.engine.counters import Counters
from memcalc.engine.follow.hand_state import HandState
from memcalc.engine.follow.models import Models
from memcalc.engine.patches import Patches
from memcalc.records.trace import Component

_PLAIN = 0
"""Key of tensors that are trained without a module."""
_MOST = 100_000
"""Nodes of a graph that are looked at for its leaves."""

_RACES = (
    "a thread of autograd's has freed the graph of a torch.func transform before the next step; on "
    "a GPU it may be late, and the peak higher by what that graph holds"
)


_LOOKS, _LOOK, _LATEST = 3, 5e-4, 0.2
"""Looks in a row that find autograd's threads at rest, seconds between two, and for all."""


class Functional:
    """Follows weights that are replaced by new tensors in every step."""

    def __init__(self, counters: Counters, models: Models) -> None:
        self._counters, self._models = counters, models
        self._given: dict[int, frozenset[int]] = {}
        """Where the weights lie that a module was given last."""
        self._state = HandState(counters)

    def install(self, patches: Patches) -> None:
        """Patch ``torch.func.functional_call`` to follow the weights it is given."""
        self._say = patches.say
        patches.wrap(torch.func, "functional_call", self._call)

    def _call(self, original: Any, module: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``functional_call``: count the given tensors as weights."""
        if not torch.compiler.is_compiling():
            # What it has itself is counted before what is put in its place.
            self._models.meet(module)
            buffers = {name for name, _ in module.named_buffers()}
            parts = [given] if isinstance(given, Mapping) else given
            self._count_weights(
                id(module),
                (one for part in parts for name, one in part.items() if name not in buffers),
            )
        return original(module, given, *args, **kwargs)

    def _count_weights(self, key: int, tensors: Iterable[Any]) -> None:
        """Count and label the leaves of some tensors as weights."""
        leaves = [leaf for one in tensors if (leaf := internals.outer_leaf(one)) is not None]
        found = frozenset(address for leaf in leaves for address in self._counters.addresses(leaf))
        if not found:
            return  # Inner steps of meta-learning: they are parts of a graph.
        if self._given.get(key, found) != found:
            self._models.touch(leaves)
        if self._given.get(key) != found:
            self._models.counts.add_plain(leaves, key)
        self._given[key] = found
        self._counters.name_at(Component.WEIGHTS, list(found))

    def look_for_plain(self, roots: Any, inputs: Any = (), *, differentiable: bool) -> None:
        """Count the leaf tensors of a backward as weights, in a program without modules.

        They are the leaves that it reaches, or arguments of the outermost ``torch.func`` transform.
        A backward that is ``differentiable`` finds no weights.
        """
        wrapped = [one for one in _list_tensors(inputs) if internals.is_functorch_tensor(one)]
        if wrapped:
            self._say(_RACES)
            if internals.nested_gradients() > 1:
                return
            leaves = [leaf for one in wrapped if (leaf := internals.outer_leaf(one)) is not None]
        elif differentiable:
            return
        else:
            leaves = list(_find_leaves(one.grad_fn for one in _list_tensors(roots)))
        self._count_weights(_PLAIN, leaves)
        self._models.adopt(leaves)

    def look_for_state(self) -> None:
        """Label the optimizer state that a program updates between two backwards."""
        places = frozenset[int]().union(*self._given.values())
        found = self._state.look(self._models.parameters(), places)
        if found:
            self._models.counts.keep(None, found)

    def gradients(self, given: Any, found: Any) -> None:
        """Label as gradients what ``torch.autograd.grad`` returned for weights."""
        known = {at for one in self._models.parameters() for at in self._counters.addresses(one)}
        known = known.union(*self._given.values())
        named = []
        for one, gradient in zip(_list_tensors(given), _list_tensors(found), strict=False):
            leaf = internals.outer_leaf(one)
            if leaf is not None and known.intersection(self._counters.addresses(leaf)):
                named.append(internals.unwrap(gradient))
        self._counters.name(Component.GRADIENTS, named)
        if any(map(internals.is_functorch_tensor, _list_tensors(given))):
            _wait_for_autograd()


def _list_tensors(given: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results of autograd."""
    several = [given] if isinstance(given, torch.Tensor) else given
    listed = several.values() if isinstance(several, Mapping) else several
    return [one for one in listed if isinstance(one, torch.Tensor)]


def _find_leaves(nodes: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in which a backward from these nodes accumulates gradients."""
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


def _wait_for_autograd() -> None:
    """Wait until autograd's threads rest: they hold a graph a little longer than its backward."""
    began, idle = time.monotonic(), 0
    while idle < _LOOKS and time.monotonic() < began + _LATEST:
        time.sleep(_LOOK)
        busy = False
        for stat in Path("/proc/self/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = stat.read_text().partition("(")[2].rpartition(") ")
                busy = busy or (name.startswith("pt_autograd") and rest[0] != "S")
        idle = 0 if busy else idle + 1
