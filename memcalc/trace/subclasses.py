"""Subclasses of tensors, such as packages keep quantised weights in, made of fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from memcalc.trace.memo import forget, forms_watched
from memcalc.trace.own_classes import both
from memcalc.trace.torch_private.devices import registered_device
from memcalc.trace.torch_private.dispatch import (
    FakeTensor,
    FakeTensorMode,
    as_meta,
    without_dispatch,
)
from memcalc.trace.torch_private.names import replaced
from memcalc.trace.torch_private.tensors import (
    data_of,
    make_subclass,
    storage_key,
    subclasses_made_by,
    swap_contents,
)


def made_of(cls: type, data: torch.Tensor, requires_grad: bool) -> Any:
    """A fake tensor as one of a class."""
    data.requires_grad_(requires_grad)
    data.__class__ = both(cls)
    return data


def on_host(like: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor of the host, seen by no recorder."""
    with without_dispatch():
        empty = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        return FakeTensor(mode, empty, torch.device("cpu"))


def set_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """``tensor.data = new``, where either may be fake; what is fake stays so."""
    if isinstance(tensor, FakeTensor) and not isinstance(new, FakeTensor):
        new = on_host(new, tensor.fake_mode)
    if not isinstance(new, FakeTensor):
        data_of.__set__(tensor, new)
    elif isinstance(tensor, FakeTensor) and _are_alike(tensor.device.type, new.device.type):
        # What autograd knows of it stays: its gradient, and who is told of that.
        data_of.__set__(tensor, new)
        _is_where(tensor, new)
    else:
        fresh = made_of(type(tensor), new.detach(), tensor.requires_grad)
        tensor.__class__, fresh.__class__ = fresh.__class__, tensor.__class__
        tensor.__dict__, fresh.__dict__ = {**tensor.__dict__, **fresh.__dict__}, {}
        swap_contents(tensor, fresh)
    forget((tensor,))


def set_known_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """The same, where autograd goes on knowing the tensor on whichever device, as FSDP1 has it.

    C++ does not let a fake tensor have what is on another kind of device: that comes under the old
    device's keys. DeepSpeed's stage 3 wants the other way: with this one its parameters' gradients
    arrived twice.
    """
    if not isinstance(tensor, FakeTensor):
        set_data(tensor, new)
        return
    fake: Any = new if isinstance(new, FakeTensor) else on_host(new, tensor.fake_mode)
    try:
        data_of.__set__(tensor, fake)
    except RuntimeError:
        with torch.no_grad(), as_meta(fake.fake_mode):
            plain = fake.detach()
        keys = "cpu" if fake.device.type != "cpu" else registered_device()
        data_of.__set__(tensor, FakeTensor(fake.fake_mode, plain, torch.device(keys)))
    _is_where(tensor, fake)
    forget((tensor,))


def _is_where(tensor: FakeTensor, new: Any) -> None:
    """The device is the fake tensor's own record."""
    tensor.fake_device = new.fake_device
    tensor.constant = None


def _are_alike(one: str, other: str) -> bool:
    """C++ lets a tensor of one kind of device have contents on the other.

    Source: c10/core/TensorImpl.h, ``has_compatible_shallow_copy_type`` (2.13).
    """
    return one == other or {one, other} == {"cpu", "cuda"}


DATA = property(data_of.__get__, set_data)
"""``Tensor.data``, where tensors may be fake."""


@contextmanager
def data_watched() -> Iterator[None]:
    """Tensors are given other ``data`` by ``set_data`` inside, so their forms stay on them."""
    with replaced(torch.Tensor, "data", DATA), forms_watched():
        yield


def pointer(tensor: torch.Tensor) -> int:
    """Something like an address of a tensor without memory; nobody goes there."""
    return int(storage_key(tensor) + tensor.storage_offset() * tensor.element_size())


def apply_by_data(module: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
    """``Module._apply`` as it goes with real tensors: by ``.data =``, one after the other."""
    if recurse:
        for child in module.children():
            child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        if is_lazy(parameter):
            _send(parameter, fn)
            continue
        with torch.no_grad():
            applied = fn(parameter)
        if _is_same(applied, parameter):
            continue
        gradient = parameter.grad
        # C++ holds what is in a compiled module, and would go on holding what was there before.
        if _meets(parameter, applied) and not isinstance(module, torch.jit.ScriptModule):
            parameter.data = applied
        else:
            parameter = torch.nn.Parameter(applied, parameter.requires_grad)
            module._parameters[name] = parameter
        if gradient is not None:
            with torch.no_grad():
                moved = fn(gradient)
            if moved is not gradient:
                gradient.data = moved
            if parameter.grad is None:
                # It was left behind with what the parameter was.
                parameter.grad = gradient
    for name, buffer in module._buffers.items():
        if buffer is None:
            continue
        if is_lazy(buffer):
            _send(buffer, fn)
        else:
            module._buffers[name] = fn(buffer)
    return module


_SENT = "_memcalc_sent_to"


def _send(lazy: torch.Tensor, fn: Any) -> None:
    """What has no shape yet is told where it will be, and as what."""
    with torch.no_grad():
        setattr(lazy, _SENT, fn(getattr(lazy, _SENT, torch.empty(0, device="cpu"))))


def materialize(
    original: Any, lazy: Any, shape: Any, device: Any = None, dtype: Any = None
) -> None:
    """``UninitializedTensorMixin.materialize``, where the tensor may become a fake one."""
    sent = lazy.__dict__.pop(_SENT, None)
    if sent is not None:
        device, dtype = device or sent.device, dtype or sent.dtype
    if device is None or torch.device(device).type == "cpu":
        original(lazy, shape, device, dtype)
        return
    made = torch.empty(shape, device=device, dtype=dtype)
    lazy.__class__ = lazy.cls_to_become
    set_data(lazy, made)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Some subclasses make a new tensor over the same storage."""
    if one is other:
        return True
    known = isinstance(one, FakeTensor) and isinstance(other, FakeTensor)
    return known and one.dtype is other.dtype and storage_key(one) == storage_key(other)


def _meets(parameter: torch.Tensor, applied: torch.Tensor) -> bool:
    """PyTorch would keep the parameter and change its content; the meta device makes a new one."""
    meta = {tensor.device.type == "meta" for tensor in (parameter, applied)}
    return len(meta) == 1


@contextmanager
def made_of_fakes() -> Iterator[None]:
    """Such tensors can be made, moved and handed to libraries inside."""

    def make(cls: Any, data: Any, require_grad: bool = False, **options: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return make_subclass(cls, data, require_grad, **options)
        return made_of(cls, data.detach(), require_grad)

    with ExitStack() as stack:
        stack.enter_context(subclasses_made_by(make, DATA))
        stack.enter_context(replaced(FakeTensor, "data_ptr", pointer))
        stack.enter_context(replaced(torch.nn.Module, "_apply", apply_by_data))
        yield
