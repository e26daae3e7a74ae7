"""Puts a model on a real device in the order ``Module.to`` does, with random weights."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_SPREAD = 0.02
_LARGE = 512 << 20
"""Bytes of a parameter that the host may refuse before it is registered: layers of experts."""
_MMAP_THRESHOLD = -3
"""``M_MMAP_THRESHOLD`` of glibc's ``malloc.h``."""
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}


class _LargeOnMeta(TorchFunctionMode):
    """Makes no large tensor on the host: no buffer that is computed comes near that size."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            meta = func(*args, **{**kwargs, "device": "meta"})
            if meta.is_floating_point() and meta.nbytes > _LARGE:
                return meta
        return func(*args, **kwargs)


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules built inside have parameters without memory, but buffers with their real values.

    Buffers such as rotary frequencies are computed when a module is built and cannot be filled
    later; parameters can, and are large.
    """
    # A freed parameter goes back to the system at once. In the heap a small object would settle in
    # its place and the next parameter would not fit: the heap of a model with many grew until a
    # fork was refused.
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, 1 << 20)
    register = torch.nn.Module.register_parameter

    def on_meta(module: torch.nn.Module, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        # A tied parameter arrives a second time and must stay the same object.
        if parameter is not None and parameter.device.type != "meta":
            moved = torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            module._parameters[name] = moved

    torch.nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        with _LargeOnMeta():
            yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def random(name: str, like: torch.Tensor) -> torch.Tensor:
    """A weight of this shape and dtype on the host, with random values; a known one as it is."""
    if not like.is_meta:
        return like
    made = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    return made.normal_(std=_SPREAD) if made.is_floating_point() else made.zero_()


def filler(model: torch.nn.Module, *, on_host: bool = True) -> Callable[[torch.nn.Module], None]:
    """What gives values to a model, or a part of it, that gets new memory.

    Parameters get random ones, of a sharded one this rank's part; buffers those that they have
    now: positions that are read from uninitialized memory would lie outside of their table.

    Args:
        model: has the buffers' values.
        on_host: fill parameters in the host's memory as well, which takes long.
    """
    values = {
        (id(module), name): buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_meta
    }

    def fill(placed: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter in placed.parameters():
                if parameter.is_floating_point() and (on_host or parameter.device.type != "cpu"):
                    parameter.normal_(std=_SPREAD)
            for module in placed.modules():
                for name, buffer in module._buffers.items():
                    value = values.get((id(module), name))
                    if buffer is not None and value is not None and not buffer.is_meta:
                        buffer.copy_(value)

    return fill


def to_device(model: torch.nn.Module, device: str) -> torch.nn.Module:
    """Give parameters memory and random values, move buffers; tied tensors stay tied."""
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in moved:
            return moved[id(tensor)]
        if tensor.device.type != "meta":
            fresh = tensor.to(device, copy=True)
        else:
            fresh = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
            )
            if fresh.is_floating_point():
                torch.nn.init.normal_(fresh, std=_SPREAD)
        if isinstance(tensor, torch.nn.Parameter):
            fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
        moved[id(tensor)] = fresh
        return fresh

    for module in model.modules():
        for group in (module._parameters, module._buffers):
            for name, tensor in group.items():
                if tensor is not None:
                    group[name] = move(tensor)  # type: ignore[assignment]
        if isinstance(module, torch.nn.RNNBase):
            # As ``RNNBase._apply`` does: cuDNN wants the weights in one buffer.
            module._init_flat_weights()
    return model
