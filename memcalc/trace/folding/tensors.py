"""From the tensors of a model with a few of its layers to those of the whole model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from memcalc.records.model import Inventory, Parameter
from memcalc.trace.folding.layers import Stack


def continued(inventory: Inventory, stacks: Sequence[Stack]) -> Inventory:
    """The inventory of the model with all layers of its stacks.

    Args:
        inventory: of the model with one repetition of each stack or more.
        stacks: what repeats; the names of tensors hold their paths.
    """
    tensors = list(inventory.tensors)
    for stack in stacks:
        tensors = list(_continued(tensors, stack))
    return replace(inventory, tensors=tuple(tensors))


def _continued(tensors: list[Parameter], stack: Stack) -> Iterator[Parameter]:
    layer = re.compile(rf"(^|.*\.){re.escape(stack.path)}\.(\d+)\.(.*)")
    for inside, group in itertools.groupby(tensors, lambda tensor: bool(layer.match(tensor.name))):
        if not inside:
            yield from group
            continue
        found: dict[int, list[tuple[str, str, Parameter]]] = {}
        for tensor in group:
            before, number, rest = layer.match(tensor.name).groups()  # type: ignore[union-attr]
            found.setdefault(int(number), []).append((before, rest, tensor))
        for number in range(stack.length):
            for before, rest, tensor in found.get(_like(number, stack), ()):
                yield replace(tensor, name=f"{before}{stack.path}.{number}.{rest}")


def _like(number: int, stack: Stack) -> int:
    """A layer before the second repetition that is as this one."""
    inside = number - stack.prefix
    return number if inside < 0 else stack.prefix + inside % stack.period
