"""Weights of a script: fake wherever they are, and the same objects wherever they move.

A script makes its model on the host and moves it; nobody reads the numbers in between. So a
parameter is fake from the start: nothing is filled with random numbers, and a model of any size
takes no memory. Moving it gives the same parameter another content, as ``.data =`` does with real
ones, so optimizers made before keep their parameters and tied weights stay tied.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.subclasses import apply_by_data, made_of, materialize, on_host
from memcalc.trace.torch_private.dispatch import FakeTensor, FakeTensorMode

_Parameter = torch.nn.Parameter
_Lazy = torch.nn.UninitializedParameter
_NoShapeYet = vars(torch.nn.parameter)["UninitializedTensorMixin"]


def install(patches: Patches, mode: FakeTensorMode, *, real_on_host: bool) -> None:
    """Make parameters fake from now on.

    Args:
        patches: what is changed.
        mode: of the fake tensors.
        real_on_host: those on the host keep their numbers, and are fake once they leave it.
    """

    def parameter(
        original: Any, cls: Any, data: Any = None, requires_grad: bool = True, **_of_fake: Any
    ) -> Any:
        # Accelerate makes a parameter anew with all attributes of the old one, a fake one's too.
        if data is None:
            data = torch.empty(0)
        if not isinstance(data, FakeTensor) and (real_on_host or not _ours(data)):
            return original(cls, data, requires_grad)
        return made_of(cls, _fake(data, mode), requires_grad)

    def subclass(original: Any, cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        taken = _is_parameter(cls) and _ours(data) and not real_on_host
        if not isinstance(data, FakeTensor) and not taken:
            return original(cls, data, *args, **kwargs)
        wanted = args[0] if args else kwargs.get("require_grad", False)
        return made_of(cls, _fake(data, mode), bool(wanted))

    patches.wrap(_Parameter, "__new__", parameter)
    made = torch.Tensor._make_subclass
    patches.set(
        torch.Tensor,
        "_make_subclass",
        staticmethod(lambda *args, **kw: subclass(made, *args, **kw)),
    )
    patches.wrap(torch.Tensor, "__deepcopy__", _deepcopy)
    patches.set(torch.nn.Module, "_apply", apply_by_data)
    patches.wrap(_NoShapeYet, "materialize", materialize)


def _ours(data: Any) -> bool:
    """A tensor of the host that nobody has reason to look into as a parameter."""
    return type(data) in (torch.Tensor, _Parameter) and data.device.type == "cpu"


def _is_parameter(cls: Any) -> bool:
    """A lazy one stays as it is until its first forward gives it a shape."""
    return isinstance(cls, type) and issubclass(cls, _Parameter) and not issubclass(cls, _Lazy)


def _fake(data: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(data, FakeTensor):
        return data.detach()
    return on_host(data, mode)


def _deepcopy(original: Any, tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    if not isinstance(tensor, FakeTensor):
        return original(tensor, memo)
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        return original(tensor, memo)
    with torch.no_grad():
        fresh = tensor.detach().clone(memory_format=torch.preserve_format)
        if tensor.device.type == "cuda":
            # The copy's storage is made first, then a tensor of one number that is let go for it.
            tensor.new_empty([])
        fresh.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            fresh.grad = _deepcopy(original, tensor.grad, memo)
    memo[id(tensor)] = fresh
    return fresh
