"""What is known of one storage while a run goes on, and the moment in which it was made."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.records.trace import Component, Phase
from memcalc.trace.folding.tagged import UNTAGGED
from memcalc.trace.streams import POOLS
from memcalc.trace.torch_private.engine import node_number

_dtypes: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """What PyTorch calls a type, such as ``bfloat16``."""
    name = _dtypes.get(dtype)
    if name is None:
        name = _dtypes[dtype] = str(dtype).removeprefix("torch.")
    return name


def name_of_node(node: Any) -> tuple[int, int] | None:
    """What tells a node of autograd's graph from others: the next may lie where it lay."""
    return (id(node), node_number(node)) if node is not None else None


class Entry:
    """What is known of one storage while the run goes on; frozen into a Storage at its end."""

    __slots__ = (
        "bytes",
        "component",
        "device",
        "dtype",
        "grad",
        "guessed",
        "module",
        "node",
        "op",
        "phase",
        "resized",
        "source",
        "step",
        "stream",
        "tag",
        "until",
        "used_by",
    )

    def __init__(self, nbytes: int, op: str, where: Position, node: Any) -> None:
        self.bytes = nbytes
        self.op = op
        self.module = where.module
        self.tag = where.tag
        self.source = where.source
        self.phase = where.phase
        self.step = where.step
        self.node = name_of_node(node)
        self.grad = torch.is_grad_enabled()
        self.component: Component | None = None
        self.guessed = False
        """The component is taken from how it was made, and gives way to what is said of it."""
        self.dtype = ""
        self.until = ""
        self.stream = self.device = 0
        self.resized = False
        self.used_by: int | None = None

    @property
    def is_on_side(self) -> bool:
        """It is of another stream than the default one, and not of a private pool."""
        return 0 < self.stream < POOLS

    def purpose(self, wrapped: bool) -> Component:
        """What it was for, by what was said of it or by how it lived.

        Args:
            wrapped: a wrapper over several GPUs uses other streams for what it sends.
        """
        if self.resized and self.component in (None, Component.ACTIVATIONS):
            return Component.UNSHARDED
        if self.component is None and wrapped and self.is_on_side:
            return Component.COMMUNICATION
        return self.component or Component.TEMPORARIES


class Position:
    """The present moment: phase, step and the module whose code runs."""

    __slots__ = ("module", "phase", "source", "step", "tag")

    def __init__(self) -> None:
        self.module = ""
        self.tag = UNTAGGED
        self.source: int | None = None
        """The storage whose repetition, known at the end, is that of what happens now."""
        self.phase = Phase.LOAD
        self.step = 0
