"""Write configs/inventories/*.json: every tensor of each bundled model with its default head.

    python scripts/make_inventories.py [MODEL ...]

Repeated layers are folded: neighboring groups of tensors that differ only in one number of
their names are written once, with the range of the number.
"""

import json
import pathlib
import re
import sys

import torch

from memcalc.catalog import models
from memcalc.records.model import Inventory
from memcalc.workload import tasks
from memcalc.workload.inventory import take
from memcalc.workload.model import build

_NUMBER = re.compile(r"\.(\d+)\.")


def rows(inventory: Inventory) -> list[list[object]]:
    return [
        [t.name, list(t.shape), t.dtype, t.trainable, t.module, t.buffer] for t in inventory.tensors
    ]


def fold(flat: list[list[object]]) -> list[list[list[object]]]:
    groups: list[tuple[int | None, list[list[object]]]] = []
    for row in flat:
        match = _NUMBER.search(row[0])
        number = int(match[1]) if match else None
        if (
            groups
            and number is not None
            and groups[-1][0] == number
            and _prefix(groups[-1][1][0]) == _prefix(row)
        ) or (groups and number is None and groups[-1][0] is None):
            groups[-1][1].append(row)
        else:
            groups.append((number, [row]))
    out: list[list[list[object]]] = []
    index = 0
    while index < len(groups):
        number, group = groups[index]
        end = index
        while (
            number is not None
            and end + 1 < len(groups)
            and _same(groups[index], groups[end + 1], end + 1 - index)
        ):
            end += 1
        if end > index:
            span = f"{{{number}..{number + end - index}}}"
            group = [[_NUMBER.sub(f".{span}.", row[0], count=1), *row[1:]] for row in group]
        out.append(group)
        index = end + 1
    return out


def _prefix(row: list[object]) -> str:
    return row[0][: _NUMBER.search(row[0]).start()]


def _same(first: tuple, other: tuple, distance: int) -> bool:
    if other[0] != first[0] + distance or len(first[1]) != len(other[1]):
        return False
    return all(
        _NUMBER.sub(f".{other[0]}.", a[0], count=1) == b[0] and a[1:] == b[1:]
        for a, b in zip(first[1], other[1], strict=True)
    )


def main() -> None:
    folder = pathlib.Path(__file__).parent.parent / "configs" / "inventories"
    folder.mkdir(exist_ok=True)
    for name in sys.argv[1:] or models.list_bundled_files():
        source = models.find(name)
        task = tasks.choose(source, "auto")
        with torch.device("meta"):
            inventory = take(build(source, task), name, task.name)
        data = {"task": task.name, "head": inventory.head, "tensors": fold(rows(inventory))}
        text = json.dumps(data, separators=(",", ":")).replace("],[[", "],\n[[")
        (folder / f"{name.replace('/', '--')}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
