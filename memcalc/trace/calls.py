"""What of an operator, and of what it is given, decides how it is recorded."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.kernels.blas import PRODUCTS
from memcalc.trace import device, memo
from memcalc.trace.engine import IN_FORMULAS
from memcalc.trace.operators import mismatched
from memcalc.trace.operators.composed import is_composed
from memcalc.trace.scratch.algebra import ASKING
from memcalc.trace.scratch.step import PROBES
from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.written_views import UNDO_VIEWS

ADDS = {torch.ops.aten.add.Tensor}
RESIZES = {torch.ops.aten.resize_.default, torch.ops.aten.resize_as_.default}
_names: dict[Any, str] = {}
_holding: dict[Any, bool] = {}


class Operator:
    """What of an operator is the same at every call."""

    __slots__ = (
        "adds",
        "by_value",
        "check",
        "composed",
        "func",
        "in_formula",
        "kept",
        "name",
        "number",
        "undoes_views",
        "ways",
        "writes",
        "writes_lists",
        "written",
    )

    def __init__(self, func: Any, ways: tuple[Any, ...], special: bool) -> None:
        self.func = func
        self.check = mismatched.check_of(func)
        """Refuses what CUDA refuses, and fake tensors do not."""
        self.ways = ways
        """What may run it instead of a kernel of its own, with some arguments."""
        self.number = memo.number_of(func)
        self.name = name_of(func)
        self.kept = not special and not ways and memo.can_be_kept(func)
        """What it makes is kept, by what it is given."""
        by_value = memo.numbers_decide(func) or mismatched.looks_at_numbers(func)
        self.by_value = self.kept and by_value
        self.composed = is_composed(func)
        self.adds = func in ADDS
        self.writes = bool(func._schema.is_mutable)
        """It may give what it is given another shape."""
        self.writes_lists = self.writes and self.name.startswith("_foreach_")
        """Its kernel for CUDA says of each tensor that it was written to; others do not."""
        self.written = self.name in PROBES or self.name in PRODUCTS or self.name in ASKING
        """It takes more than what it makes, and at times."""
        self.in_formula = func in IN_FORMULAS
        self.undoes_views = func in UNDO_VIEWS


def name_of(func: Any) -> str:
    """Its name, without ``aten::``."""
    name = _names.get(func)
    if name is None:
        name = _names[func] = func._schema.name.removeprefix("aten::")
    return name


def holds_others(types: Any) -> bool:
    """Some of these types of tensors hold other tensors, and have no memory of their own."""
    known = _holding.get(types)
    if known is None:
        known = _holding[types] = any(
            hasattr(kind, "__tensor_flatten__") and not issubclass(kind, FakeTensor)
            for kind in types
        )
    return known


def on_device(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call makes or takes tensors of the simulated device."""
    place = kwargs.get("device")
    if place is not None:
        return torch.device(place).type == device.NAME
    if device.NAME == "cpu":
        return True
    return any(map(_is_simulated, args)) or any(map(_is_simulated, kwargs.values()))


def _is_simulated(arg: Any) -> bool:
    if isinstance(arg, torch.Tensor):
        return arg.device.type == device.NAME
    if isinstance(arg, list | tuple):
        return any(_is_simulated(item) for item in arg)
    # ``to(device, dtype)`` comes whole where autograd's keys are off (inference mode).
    return isinstance(arg, torch.device) and arg.type == device.NAME


def is_numbers(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operator makes whole numbers of 32 bits, or works with some that are real."""
    flat = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else (arg,))]
    tensors = [item for item in flat if isinstance(item, torch.Tensor)]
    if not tensors:
        return kwargs.get("dtype") is torch.int32
    return all(one.dtype is torch.int32 and not isinstance(one, FakeTensor) for one in tensors)
