"""Classes of tensors that a program brings, of which fake tensors are to be."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import getattr_static
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from memcalc.trace.memo import FORM
from memcalc.trace.torch_private.choices import foreach_takes
from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.torch_private.tensors import unasked

_ASKED = "__torch_function__"


class _Asked(FakeTensor):
    """Where a class asks its base about functions, that answers as a tensor's does."""


setattr(_Asked, _ASKED, torch.Tensor.__dict__[_ASKED])
_both: dict[type, Any] = {}
_seen: dict[type, Any] = {}
_apart: Any = WeakIdKeyDictionary()
"""By tensor, what is written on it as a fake one, where its class may write over ``__dict__``."""
_written = {FORM}
"""Names of such attributes."""
_own: Any = vars(torch.Tensor)["__dict__"]


def both(cls: type) -> Any:
    """A class that is ``cls`` to whoever asks, and a fake tensor to PyTorch."""
    if cls not in _both:
        if issubclass(cls, FakeTensor):
            return cls
        if issubclass(FakeTensor, cls):
            return FakeTensor
        names = {"__torch_dispatch__": FakeTensor.__torch_dispatch__, "__module__": cls.__module__}
        kind: Any = type(cls)
        made = _both[cls] = kind(cls.__name__, (cls, _Asked, FakeTensor), names)
        # By default a class that says how operators run is not asked about functions.
        setattr(made, _ASKED, getattr_static(cls, _ASKED))
        foreach_takes(made)
    return _both[cls]


def stood_for(kind: type) -> type:
    """The class that a program gave what is of this one."""
    given = (cls for made in (_both, _seen) for cls in made if made[cls] is kind)
    return next(given, kind)


def seen_as(tensor: torch.Tensor, cls: type) -> Any:
    """``Tensor.as_subclass`` of a fake tensor: another tensor over its memory, which learns."""
    cls = stood_for(cls)
    with unasked():
        seen: Any = torch.ops.aten.alias.default(tensor)
    written = dict(seen.__dict__)
    if cls not in _seen:
        _seen[cls] = _seen_kind(both(cls), cls.__name__, written)
    _apart[seen] = written
    seen.__dict__.clear()
    seen.__class__ = _seen[cls]
    return seen


def _seen_kind(base: Any, name: str, written: Iterable[str]) -> Any:
    """A class whose tensors may be given another ``__dict__``, as MONAI's and fastai's are."""
    _written.update(written)
    names = {"__dict__": property(_own.__get__, _give), "__module__": base.__module__}
    kind: Any = type(base)
    made = kind(name, (base,), {**names, **{each: _Apart(each) for each in written}})
    setattr(made, _ASKED, getattr_static(base, _ASKED))
    foreach_takes(made)
    return made


def _give(tensor: Any, given: dict[str, Any]) -> None:
    """What a fake tensor is known by is its own, not another's."""
    own = _own.__get__(tensor)
    kept = {name: own[name] for name in own.keys() & _written}
    _own.__set__(tensor, {**{k: v for k, v in given.items() if k not in _written}, **kept})


class _Apart:
    """An attribute that does not stand in ``__dict__``, unless the tensor was made otherwise."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tensor: Any, owner: type) -> Any:
        return (_apart.get(tensor) or _own.__get__(tensor))[self._name]

    def __set__(self, tensor: Any, value: Any) -> None:
        (_apart.get(tensor) or _own.__get__(tensor))[self._name] = value
