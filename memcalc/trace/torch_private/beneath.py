"""Every operator that is called, seen below autograd without a dispatch mode.

A dispatch mode changes what it looks at: where one is at work PyTorch takes every tensor for one of
a subclass (aten/src/ATen/TensorSubclassLikeUtils.h, ``isTensorSubclassLike``), and adds masks,
biases and gradients to new memory where it would write in place. So calls come by a dispatch key
that PyTorch has and does not use (c10/core/DispatchKey.h, ``Fake``: for packages outside of it).
Operators have a kernel each there, not one for all: that, C++ does not find where a mode or a
subclass is at work (torch/csrc/utils/python_dispatch.cpp, ``python_op_registration_trampoline``).
Read in 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from memcalc.trace.full import without_frames
from memcalc.trace.torch_private.dispatch import HigherOrderOperator, mode_in_use
from memcalc.trace.torch_private.names import ask, replaced

_NAME = "Fake"
_KEY = ask("torch._C:_parse_dispatch_key")(_NAME)
_KEYS = ask("torch._C:DispatchKeySet")(_KEY)
_include: Callable[[Any, bool], None] = ask("torch._C:_dispatch_tls_set_dispatch_key_included")
_exclude = ask("torch._C:_ExcludeDispatchKeyGuard")
_all_names: Callable[[], list[str]] = ask("torch._C:_dispatch_get_all_op_names")
_works_out_sizes: Callable[[], bool] = ask("torch._C:_meta_in_tls_dispatch_include")
"""A fake tensor runs an operator on one without memory, in a mode that has left the stack."""
_Namespace = ask("torch._ops:_OpNamespace")
_Packet: Any = ask("torch._ops:OpOverloadPacket")

See = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Is given an operator and its arguments, and returns what it makes of them."""
_PASS_BY = (
    # They look for a kernel under the key themselves.
    (HigherOrderOperator, "__call__"),
    # What they make has to be new to Python; they put dispatch modes aside as well.
    (torch.Tensor, "_make_subclass"),
    (torch.Tensor, "as_subclass"),
    (torch.Tensor, "__new__"),
)
_seen_by: list[See] = []
_libraries: dict[str, torch.library.Library] = {}
_given: set[str] = set()


@contextmanager
def seeing(see: See) -> Iterator[None]:
    """Calls of this thread come to ``see`` inside, and those of backward passes it begins.

    What ``see`` calls is not seen in its turn (``seen_as_well``), nor what functions do that are
    given to operators, nor what compilers run to find out about shapes.
    """
    _register()
    with ExitStack() as passing:
        for owner, name in _PASS_BY:
            value = getattr(owner, name)
            passing.enter_context(replaced(owner, name, _unseen(value)))
        _seen_by.append(see)
        _include(_KEY, True)
        try:
            yield
        finally:
            _include(_KEY, False)
            _seen_by.pop()


@contextmanager
def seen_here() -> Iterator[None]:
    """Calls of another thread come to who sees those of the first."""
    _include(_KEY, True)
    try:
        yield
    finally:
        _include(_KEY, False)


def unseen() -> Any:
    """A context in which calls pass by whoever sees them."""
    return _exclude(_KEYS)


def _register() -> None:
    if _libraries:
        return
    _library("_").fallback(torch.library.fallthrough_kernel, _NAME)
    for name in _all_names():
        _give_kernel(name)
    find = _Namespace.__getattr__

    def found(self: Any, name: str) -> Any:
        """An operator that a package brings: a namespace asks for each once."""
        operator = find(self, name)
        if isinstance(operator, _Packet):
            for overload in operator.overloads():
                suffix = "" if overload == "default" else f".{overload}"
                _give_kernel(f"{self.name}::{name}{suffix}")
        return operator

    _Namespace.__getattr__ = found


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "IMPL")
    return _libraries[namespace]


def _give_kernel(name: str) -> None:
    """Let an operator, such as ``aten::add.Tensor``, come by the key."""
    if name in _given:
        return
    _given.add(name)
    namespace, own = name.split("::")
    func: Any = None

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal func
        if func is None:
            packet, _, overload = own.partition(".")
            packets = getattr(torch.ops, namespace)
            func = getattr(getattr(packets, packet), overload or "default")
        if not _seen_by or mode_in_use() is not None or _works_out_sizes():
            with unseen():
                return func(*args, **kwargs)
        try:
            return _seen_by[-1](func, args, kwargs)
        except torch.OutOfMemoryError as error:
            del args, kwargs
            raise without_frames(error) from None

    _library(namespace).impl(own, called, _NAME)


def _unseen(call: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        with unseen():
            return call(*args, **kwargs)

    return inner
