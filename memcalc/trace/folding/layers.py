"""Finds the layers that a model repeats, and runs it with fewer of them.

A stack of layers is a prefix, a block of ``period`` layers that repeats (Gemma 3: five with
sliding and one with full attention), and a rest that begins the block once more. Layers are the
same when their classes and parameter shapes are, what they were told (whether they are recomputed
in backward, for one), and what the config says of each layer, such as its type of attention.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

LONGEST_PREFIX = 4
LONGEST_PERIOD = 8
_NUMBERS_LAYERS = re.compile(r"idx|index|layer_(id|num|number)$|^i$|^depth$")
"""Names under which layers keep their place among the others."""


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A repeated stack of layers: ``prefix + period * repeats + rest`` of them."""

    path: str
    """Name of the module list, such as ``model.layers``."""
    prefix: int
    period: int
    repeats: int
    rest: int

    @property
    def length(self) -> int:
        """Number of layers."""
        return self.prefix + self.period * self.repeats + self.rest

    def unit(self, index: int, repeats: int) -> int | None:
        """Which repetition a layer of a stack cut to ``repeats`` is in; ``None``: outside."""
        inside = index - self.prefix
        return inside // self.period if 0 <= inside < self.period * repeats else None


def find(model: torch.nn.Module, least: int) -> list[Stack]:
    """The stacks of a model that repeat at least ``least`` times, all equally often.

    Where stacks repeat differently often, only the most repeated ones are returned.
    """
    stacks = [
        stack
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList)
        and (stack := _describe(name, module, model)) is not None
        and stack.repeats >= least
    ]
    # A list inside a repeated layer is repeated with it.
    outer = [s for s in stacks if not any(s.path.startswith(f"{t.path}.") for t in stacks)]
    most = max((stack.repeats for stack in outer), default=0)
    return [stack for stack in outer if stack.repeats == most]


def _describe(name: str, layers: torch.nn.ModuleList, model: torch.nn.Module) -> Stack | None:
    count = len(layers)
    kinds = list(map(_kind, layers, _told(name, count, model)))
    for prefix in range(min(LONGEST_PREFIX, count) + 1):
        for period in range(1, LONGEST_PERIOD + 1):
            body = kinds[prefix:]
            if len(body) < 2 * period:
                break
            if all(body[i] == body[i + period] for i in range(len(body) - period)):
                repeats, rest = divmod(len(body), period)
                return Stack(path=name, prefix=prefix, period=period, repeats=repeats, rest=rest)
    return None


def _kind(layer: torch.nn.Module, told: Sequence[Any]) -> Any:
    shapes = tuple(
        (name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in layer.named_parameters()
    )
    modules = tuple((type(module), *_switches(module)) for module in layer.modules())
    return modules, shapes, repr(told)


def _switches(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module was told and may act by, such as ``is_sliding``; not which layer it is.

    Of a number that is not whole, a rate or a factor, only whether there is one.
    """
    for name, value in vars(module).items():
        if isinstance(value, float):
            yield name, bool(value)
        elif isinstance(value, bool | int | str | None) and not _NUMBERS_LAYERS.search(name):
            yield name, value


def _told(name: str, count: int, model: torch.nn.Module) -> list[tuple[Any, ...]]:
    """For each of ``count`` layers, what configs of the modules around them say of it.

    A part of a composite model has a config of its own, which its code may go by as it runs its
    layers (``config.layer_types[i]``).
    """
    around, configs = model, [getattr(model, "config", None)]
    for part in name.split(".")[:-1]:
        around = getattr(around, part)
        configs.append(getattr(around, "config", None))
    lists = [
        value
        for config in configs
        for value in getattr(config, "__dict__", {}).values()
        if isinstance(value, list | tuple) and len(value) == count
    ]
    return list(zip(*lists, strict=True)) if lists else [()] * count


@contextlib.contextmanager
def cut(model: torch.nn.Module, stacks: Sequence[Stack], repeats: int) -> Iterator[None]:
    """Leave only ``repeats`` repetitions in each stack while the context lasts."""
    originals: list[tuple[torch.nn.ModuleList, dict[str, Any]]] = []
    try:
        for stack in stacks:
            layers = model.get_submodule(stack.path)
            assert isinstance(layers, torch.nn.ModuleList)
            originals.append((layers, dict(layers._modules)))
            keep = list(layers)
            first = stack.prefix + stack.period * repeats
            kept = keep[:first] + (keep[-stack.rest :] if stack.rest else [])
            layers._modules.clear()
            for index, layer in enumerate(kept):
                layers._modules[str(index)] = layer
        yield
    finally:
        for layers, modules in originals:
            layers._modules.clear()
            layers._modules.update(modules)
