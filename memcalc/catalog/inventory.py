"""The shipped inventories of bundled models: exact without importing torch.

One JSON file a model: tensors as ``[name, shape, dtype, trainable, module, buffer]``, where
``{a..b}`` in a name stands for each number of that range.
"""

from __future__ import annotations

import json
import re
from typing import Any

from memcalc.catalog.models import ModelSource
from memcalc.files.shipped import configs
from memcalc.records.model import Inventory, Parameter

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def load(source: ModelSource, task: str) -> Inventory | None:
    """The inventory of a bundled model with its default head; ``None``: not shipped."""
    if source.origin != "bundled":
        return None
    path = configs() / "inventories" / f"{source.name.replace('/', '--')}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if data["task"] != task:
        return None
    return Inventory(
        model=source.name, task=data["task"], head=data["head"], tensors=tuple(_expand(data))
    )


def _expand(data: dict[str, Any]) -> list[Parameter]:
    tensors: list[Parameter] = []
    for group in data["tensors"]:
        first = _RANGE.search(group[0][0])
        if first is None:
            tensors += (_parameter(row, row[0]) for row in group)
            continue
        for number in range(int(first[1]), int(first[2]) + 1):
            tensors += (_parameter(row, _RANGE.sub(str(number), row[0])) for row in group)
    return tensors


def _parameter(row: list[Any], name: str) -> Parameter:
    _, shape, dtype, trainable, module, buffer = row
    return Parameter(
        name=name,
        shape=tuple(shape),
        dtype=dtype,
        trainable=trainable,
        module=module,
        buffer=buffer,
    )
