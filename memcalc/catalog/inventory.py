"""Loads the shipped inventories of bundled models, which are exact, without importing torch.

Each model has a JSON file: tensors as ``[name, shape, dtype, trainable, module, buffer]``, where
``{a..b}`` in a name means one tensor for each number of that range.
"""

import re
from collections.abc import Iterator
from typing import Any

from memcalc.catalog.models import ModelSource
from memcalc.files import shipped
from memcalc.records.model import Inventory, Parameter

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def load(source: ModelSource, task: str) -> Inventory | None:
    """Read the shipped parameter list of a bundled model for a task, or return None."""
    if source.origin != "bundled":
        return None
    name = f"inventories/{source.name.replace('/', '--')}.json"
    if not (shipped.configs() / name).exists():
        return None

    def make_inventory(data: dict[str, Any]) -> Inventory | None:
        if data["task"] != task:
            return None
        tensors = tuple(_expand_layers(data))
        return Inventory(model=source.name, task=task, head=data["head"], tensors=tensors)

    return shipped.read(name, make_inventory)


def _expand_layers(data: dict[str, Any]) -> Iterator[Parameter]:
    """Yield the parameters of a file, each repeated layer range written out."""
    for group in data["tensors"]:
        first = _RANGE.search(group[0][0])
        numbers = [""] if first is None else range(int(first[1]), int(first[2]) + 1)
        for number in numbers:
            for name, shape, dtype, trainable, module, buffer in group:
                yield Parameter(
                    name=_RANGE.sub(str(number), name),
                    shape=tuple(shape),
                    dtype=dtype,
                    trainable=trainable,
                    module=module,
                    buffer=buffer,
                )
