"""How a device that Python supplies is made known to PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.trace.torch_private.names import ask

_set_up_device = ask("torch.utils.backend_registration:_setup_privateuseone_for_python_backend")
DeviceGuard: type = ask("torch._C._acc:DeviceGuard")
"""What the guard of a device that Python supplies is made from."""
PRIVATE_DEVICE = ask("torch._C._autograd:DeviceType.PrivateUse1")
_registered: list[str] = []


def register_device(name: str, module: Any, guard: Any) -> None:
    """Give PyTorch's ``PrivateUse1`` device a name, the module behind ``torch.<name>``, a guard."""
    _set_up_device(name, backend_module=module, device_guard=guard)
    _registered.append(name)


def registered_device() -> str:
    """The name that the device was given."""
    return _registered[-1]


@contextmanager
def raw_stream() -> Iterator[None]:
    """The function is there that a build with CUDA gives a stream's number by."""
    name = "_cuda_getCurrentRawStream"
    missing = not hasattr(torch._C, name)
    if missing:
        setattr(torch._C, name, lambda index: 0)
    try:
        yield
    finally:
        if missing:
            delattr(torch._C, name)
