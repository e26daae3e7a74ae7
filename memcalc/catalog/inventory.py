"""Loads the shipped inventories of bundled models, which are exact, without importing torch.

Each model has a JSON file: tensors as ``[name, shape, dtype, trainable, module, buffer]``, where
``{a..b}`` in a name means one tensor for each number of that range.
"""

import fnmatch
import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from memcalc.catalog.models import ModelSource
from memcalc.errors import SettingError, UsageError, blame_setting
from memcalc.files import shipped
from memcalc.records.model import Inventory, Parameter
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

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


def check(plan: Plan, source: ModelSource, task: str) -> None:
    """Raise SettingError if a plan's freeze patterns or LoRA targets match no parameter."""
    shipped = load(source, task) if plan.freeze or plan.adapters else None
    if shipped is None:
        return
    if plan.adapters is None:
        with blame_setting("freeze"):
            apply_precision(shipped, plan)
        return
    targets = adapter(plan.adapters).target
    owners = {parameter.name.rpartition(".")[0] for parameter in shipped.parameters}
    if isinstance(targets, tuple) and not any(
        f".{owner}".endswith(f".{target}") for owner in owners for target in targets
    ):
        known = sorted({owner.rpartition(".")[2] for owner in owners} - {""})
        named = ", ".join(name for name in known if not name.isdigit())
        raise SettingError(
            "lora", f"{source.name} has no module called {' or '.join(targets)}: name of {named}."
        )


def apply_precision(inventory: Inventory, plan: Plan) -> Inventory:
    """Return a model's tensors in the plan's precision, with its frozen parameters.

    With adapters the precision stays: the inventory has it already, and peft widens some tensors.

    Raises:
        UsageError: a pattern matches no parameter, or nothing is left to train.
    """
    half = "float16" if plan.precision == "fp16" else "bfloat16"
    whole = half if plan.half_weights else "float32"
    dtype = whole if plan.adapters is None else None
    for pattern in plan.freeze:
        if not any(fnmatch.fnmatch(p.name, pattern) for p in inventory.parameters):
            raise UsageError(f"--freeze {pattern!r} matches no parameter: try '*embeddings*'.")

    def apply_to_tensor(tensor: Parameter) -> Parameter:
        frozen = any(fnmatch.fnmatch(tensor.name, pattern) for pattern in plan.freeze)
        floating = tensor.dtype in ("float32", "float16", "bfloat16")
        wanted = dtype if dtype is not None and floating else tensor.dtype
        if wanted == tensor.dtype and not frozen:
            return tensor
        return replace(tensor, dtype=wanted, trainable=tensor.trainable and not frozen)

    planned = replace(inventory, tensors=tuple(map(apply_to_tensor, inventory.tensors)))
    if not planned.trainable:
        raise UsageError("Nothing is left to train: freeze fewer parameters.")
    return planned
