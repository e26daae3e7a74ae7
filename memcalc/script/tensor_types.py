"""``torch.cuda.FloatTensor`` and its like, and classes of a script's own, which make tensors."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.own_classes import seen_as, stood_for
from memcalc.trace.torch_private.dispatch import FakeTensor, without_dispatch

_NAMES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


class _Type(type):
    """A type whose instances are tensors of one kind of number on the simulated GPU."""

    dtype: torch.dtype
    is_cuda, is_sparse, layout = True, False, torch.strided

    def __call__(cls, *given: Any, **more: Any) -> torch.Tensor:
        """Sizes, data or nothing, as the host's type of this name takes them."""
        if given and isinstance(given[0], torch.Size):
            given = tuple(given[0])
        if all(isinstance(size, int) for size in given):
            return torch.empty(given or 0, dtype=cls.dtype, device="cuda")
        if isinstance(given[0], torch.Tensor):
            if not isinstance(given[0], cls):
                raise TypeError(f"expected a {cls.__module__}.{cls.__name__} ({given[0].type()})")
            return given[0].view_as(given[0])
        made: torch.Tensor = getattr(torch, cls.__name__)(*given).to("cuda")
        return made

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype
        )


def install(patches: Patches) -> None:
    """Let the types be there, and tensors become of them by name."""
    types = {
        name: _Type(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        for name, dtype in _NAMES.items()
    }
    for name, kind in types.items():
        patches.set(torch.cuda, name, kind)

    def named(wanted: Any) -> Any:
        if isinstance(wanted, str) and wanted.startswith("torch.cuda."):
            return types.get(wanted.removeprefix("torch.cuda."), wanted)
        return wanted

    def of_type(
        original: Any, tensor: torch.Tensor, dtype: Any = None, *rest: Any, **more: Any
    ) -> Any:
        kind = named(dtype)
        if isinstance(kind, _Type):
            return tensor.to("cuda", kind.dtype)
        return original(tensor, dtype, *rest, **more)

    chosen: list[_Type] = []

    def default(original: Any, wanted: Any) -> None:
        kind = named(wanted)
        chosen[:] = [kind] if isinstance(kind, _Type) else []
        if isinstance(kind, _Type):
            torch.set_default_dtype(kind.dtype)
            torch.set_default_device("cuda")
        else:
            torch.set_default_device(None)
            original(wanted)

    patches.wrap(torch.Tensor, "type", of_type)
    patches.wrap(torch._C, "_set_default_tensor_type", default)
    _install_classes(patches, chosen)


def _install_classes(patches: Patches, chosen: list[_Type]) -> None:
    """Let tensors be made by a class: by the default type (``chosen``), or by a script's own."""

    def new(original: Any, cls: type, *given: Any, **more: Any) -> Any:
        """``torch.Tensor(...)`` makes one of the default type, wherever tensors are made else.

        What is of a class of its own has to be new to Python.
        """
        data = next(iter(given), 0)
        if cls is not torch.Tensor:
            if isinstance(data, FakeTensor):
                return seen_as(data, cls)
            with without_dispatch():
                return original(cls, *given, **more)
        if not chosen or isinstance(data, torch.Tensor):
            return original(cls, *given, **more)
        return chosen[0](*given, **more)

    def as_subclass(original: Any, tensor: torch.Tensor, cls: type) -> Any:
        if isinstance(tensor, FakeTensor):
            return seen_as(tensor, cls)
        return original(tensor, stood_for(cls))

    patches.wrap(torch.Tensor, "__new__", new)
    patches.wrap(torch.Tensor, "as_subclass", as_subclass)
