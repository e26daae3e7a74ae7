"""Operators, their kernels, and the modes and fake tensors through which they are called."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from memcalc.trace.torch_private.names import ask

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
]

_key_set = ask("torch._C:DispatchKeySet")
_keys = ask("torch._C:DispatchKey")
_exclude = ask("torch._C:_ExcludeDispatchKeyGuard")
_force = ask("torch._C:_ForceDispatchKeyGuard")
_included = ask("torch._C:_dispatch_tls_local_include_set")
_excluded = ask("torch._C:_dispatch_tls_local_exclude_set")
_VIEWS = _key_set(_keys.ADInplaceOrView)
_registered = ask("torch._C:_dispatch_get_registrations_for_dispatch_key")
_dump: Callable[[str], str] = ask("torch._C:_dispatch_dump")
_AUTOCAST = "AutocastCUDA"
as_meta: Callable[[FakeTensorMode], AbstractContextManager[None]] = ask(
    "torch._subclasses.fake_tensor:in_kernel_invocation_manager"
)
"""Inside, fake tensors are the meta tensors that they hold."""
has_kernel: Callable[[str, str], bool] = ask("torch._C:_dispatch_has_kernel_for_dispatch_key")
"""Does an operator, such as ``aten::linear``, have a kernel of its own under a dispatch key?"""
without_modes: Callable[[], AbstractContextManager[Any]] = _disable_current_modes
"""A context in which no dispatch mode sees what runs."""
below_autograd: Callable[[], AbstractContextManager[Any]] = ask(
    "torch._C:_AutoDispatchBelowAutograd"
)
"""A context in which operators run without a record for backward."""
without_dispatch: Callable[[], AbstractContextManager[Any]] = ask("torch._C:_DisableTorchDispatch")
"""The same for real tensors only, and cheap: fake ones are no tensors in it."""
lift_from_host: Callable[[bool], None] = ask("torch._C:_set_only_lift_cpu_tensors")
"""Whether ``torch.tensor`` and its like copy to a device by an operator that modes see.

Else they do so unseen, as if the numbers had always been there. Of the calling thread alone; fake
modes set it where they are entered (torch/csrc/utils/tensor_new.cpp, 2.13).
"""
_mode_of_kind: Callable[[Any], Any] = ask("torch._C:_get_dispatch_mode")
_FAKE = ask("torch._C:_TorchDispatchModeKey.FAKE")


def by_others(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a composed operator by others, as C++ composes it.

    Of some PyTorch has a composition in Python too, which takes other operators.
    """
    return func._op_dk(_keys.CompositeImplicitAutograd, *args, **kwargs)


def views_have_bases() -> AbstractContextManager[Any]:
    """In the handler of a dispatch mode, too: ``matmul`` goes by it (``should_fold``)."""
    guard: AbstractContextManager[Any] = _force(_included(), _excluded() - _VIEWS)
    return guard


def recorder_in_use() -> Any:
    """The innermost dispatch mode that writes down what runs; ``None``: nobody does."""
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if hasattr(mode, "runs_cudnn")), None)


def mode_in_use() -> FakeTensorMode:
    """The fake mode that whatever runs now runs in."""
    mode: FakeTensorMode = _mode_of_kind(_FAKE)
    return mode


@contextmanager
def without_key(name: str) -> Iterator[None]:
    """Calls inside pass a dispatch key by."""
    with _exclude(_key_set(getattr(_keys, name))):
        yield


def autocast_names() -> frozenset[str]:
    """Operators that CUDA's autocast does something to: ``aten::sum.dim_IntList``.

    Those of PyTorch are registered in builds without CUDA as well (aten/src/ATen/
    autocast_mode.cpp), but for ``_cudnn_rnn``; packages add theirs: ``torchvision::roi_align``.
    """
    return frozenset(_registered(_AUTOCAST))


def autocast_of_package(func: OpOverload) -> Callable[..., Any] | None:
    """What a package's own Python code does to its operator in CUDA's autocast; ``None``: no such.

    C++ and ``torch.library.register_autocast`` cast only what lies on a CUDA device.
    """
    found = re.search(rf"{_AUTOCAST}: registered at (\S+\.py):", _dump(func.name()))
    if found is None or found[1] == torch.library.__file__:
        return None
    return functools.partial(func._op_dk, getattr(_keys, _AUTOCAST))


def for_every_device(func: OpOverload) -> Callable[..., Any] | None:
    """The kernel that an operator has for all devices alike; ``None``: it has none.

    Called so, what it calls in its turn is seen by modes; through the operator it is not.
    """
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    if not func.has_kernel_for_dispatch_key(key):
        return None
    return functools.partial(func._op_dk, key)


def as_composed(func: OpOverload) -> Callable[..., Any]:
    """The C++ code that an operator is composed of; ``decompose`` may run Python's in its place."""
    return functools.partial(func._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


HigherOrderOperator: Any = ask("torch._ops:HigherOrderOperator")
"""Operators that are given functions: flex attention, ``torch.cond``."""


_ASKS_MODE = "_get_current_dispatch_mode"
"""What eager code calls first that refuses to run where a dispatch mode sees what it does."""


def eager_code(operator: Any) -> Callable[..., Any] | None:
    """What runs such an operator where nothing is compiled; ``None``: it has no such code."""
    kernels: dict[Any, Any] = operator.py_kernels
    keys = (torch._C.DispatchKey.CompositeExplicitAutograd, torch._C.DispatchKey.CUDA)
    found = next((kernels[key] for key in keys if key in kernels), None)
    asks = found is not None and _ASKS_MODE in found.__code__.co_names
    return functools.partial(_as_if_unseen, found) if asks else found


def _as_if_unseen(eager: Any, *args: Any, **kwargs: Any) -> Any:
    """Run it; when it asks for a mode, there is none. What it is given may ask as well, later."""
    homes = [sys.modules[_disable_current_modes.__module__].__dict__, eager.__globals__]
    asked = [home for home in homes if _ASKS_MODE in home]
    known = [home[_ASKS_MODE] for home in asked]

    def none() -> None:
        for home, function in zip(asked, known, strict=True):
            home[_ASKS_MODE] = function

    for home in asked:
        home[_ASKS_MODE] = none
    try:
        return eager(*args, **kwargs)
    finally:
        none()


transformed: Callable[[], Any] = ask("torch._C._functorch:peek_interpreter_stack")
"""The transform of ``torch.func`` at work, if one is."""
untransformed: Callable[[], AbstractContextManager[Any]] = ask(
    "torch._functorch.pyfunctorch:temporarily_clear_interpreter_stack"
)
"""A context in which none is."""
OpOverload: Any = ask("torch._ops:OpOverload")
"""An operator with one of its signatures."""
_rule: Any = ask("torch._library.simple_registry:find_torch_dispatch_rule")


@contextmanager
def no_rules() -> Iterator[None]:
    """Dispatch modes and fake tensors have no rules by operator, and are not asked for any.

    C++ keeps the function that it asks before every call (torch/csrc/utils/python_arg_parser.cpp,
    ``maybe_get_registered_torch_dispatch_rule``), so that function itself is given other code.
    """

    def find_torch_dispatch_rule(op: Any, torch_dispatch_class: type) -> None:
        return None

    before = _rule.__code__
    _rule.__code__ = find_torch_dispatch_rule.__code__
    try:
        yield
    finally:
        _rule.__code__ = before
