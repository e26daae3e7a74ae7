"""Finds the layers that a model repeats, and runs it with fewer of them.

A stack of layers is a prefix, a block of ``period`` layers that repeats (Gemma 3: five with
sliding and one with full attention), and a rest that begins the block once more. Layers are the
same when their classes, parameter shapes and attention types are, and whether they are
recomputed in backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

LONGEST_PREFIX = 4
LONGEST_PERIOD = 8


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
    kinds = [_kind(layer, index, model) for index, layer in enumerate(layers)]
    count = len(kinds)
    for prefix in range(min(LONGEST_PREFIX, count) + 1):
        for period in range(1, LONGEST_PERIOD + 1):
            body = kinds[prefix:]
            if len(body) < 2 * period:
                break
            if all(body[i] == body[i + period] for i in range(len(body) - period)):
                repeats, rest = divmod(len(body), period)
                return Stack(path=name, prefix=prefix, period=period, repeats=repeats, rest=rest)
    return None


def _kind(layer: torch.nn.Module, index: int, model: torch.nn.Module) -> Any:
    types = getattr(getattr(model, "config", None), "layer_types", None)
    attention = types[index] if isinstance(types, Sequence) and index < len(types) else None
    shapes = tuple(
        (name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in layer.named_parameters()
    )
    classes = tuple(type(module) for module in layer.modules())
    return classes, shapes, attention, getattr(layer, "gradient_checkpointing", None)


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
