"""A tensor of the GPU is no less exactly a tensor: ``type(x) is torch.Tensor`` holds for it.

Where there is no GPU it is of a class of its own, which Python's ``type`` shows. A module that asks
for the type of something and compares with ``torch.Tensor`` finds another ``type`` among its
globals, which does not; PyTorch itself is left alone, for there the difference matters.
"""

from __future__ import annotations

import builtins
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.own_classes import stood_for
from memcalc.trace.torch_private.dispatch import FakeTensor

_ASKS = re.compile(rb"(?<![\w.])type\(\s*[^,()\n]+(\([^()\n]*\))?[^,()\n]*\)")
"""The type of something; not ``dtype(`` or ``x.type(``, nor a class made of a name and bases."""
_COMPARES = re.compile(
    rb"(\bis(\s+not)?|==|!=|\bin)\s[^\n#]*\bTensor\b|\bTensor\b\s*(==|!=|\bis\b|:(?!:))"
)
"""With the class of a tensor, or by a table of such."""
_LEFT_ALONE = ("torch.", "memcalc.", "functorch.")


class _Telling(type):
    """Lets a class be called as ``type`` is: it tells a type, or makes one."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not type_of or len(args) != 1:
            return super().__call__(*args, **kwargs)
        found = builtins.type(args[0])
        return torch.Tensor if found is FakeTensor else stood_for(found)

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls is type_of:
            return isinstance(instance, type)
        return super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, type) if cls is type_of else super().__subclasscheck__(subclass)

    def __getitem__(cls, item: Any) -> Any:
        return type[item]


class type_of(type, metaclass=_Telling):  # noqa: N801 - it stands for ``type``
    """Python's ``type``, by which a fake tensor is a ``torch.Tensor``."""


def install(patches: Patches) -> None:
    """Let modules that are imported from now on ask so."""

    def run(original: Any, self: SourceFileLoader, module: ModuleType) -> None:
        outside = not f"{module.__name__}.".startswith(_LEFT_ALONE)
        if outside and asks(Path(self.path)):
            named = vars(module)
            named["type"] = type_of
            # One that the module makes itself stays.
            patches.also(lambda: named.pop("type") if named.get("type") is type_of else None)
        original(self, module)

    patches.wrap(SourceFileLoader, "exec_module", run)


def asks(path: Path) -> bool:
    """A module's source asks whether something is exactly a tensor."""
    try:
        source = path.read_bytes()
    except OSError:
        return False
    return b"Tensor" in source and bool(_ASKS.search(source)) and bool(_COMPARES.search(source))


def globals_of(path: str | None) -> dict[str, Any]:
    """What a program that runs by itself has besides its own names."""
    return {"type": type_of} if path is not None and asks(Path(path)) else {}
