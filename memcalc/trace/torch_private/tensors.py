"""What names a tensor and its storage, who holds them, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.torch_private.names import ask, replaced

_storage_users: Callable[[int], int] = ask("torch._C:_storage_Use_Count")
_storage_address: Callable[[torch.Tensor], int] = ask("torch._C:_storage_address")


def storage_key(tensor: torch.Tensor) -> int:
    """What names a tensor's storage as long as that lives; of a DTensor, its local part's.

    A storage that Python has looked at is held twice from then on, and the autograd engine adds
    no gradient in place to one (torch/csrc/autograd/input_buffer.cpp); this does not look.
    """
    return _storage_address(tensor if type(tensor) is FakeTensor else local_part(tensor))


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Where a tensor's elements lie; of a DTensor, those of its local part."""
    part = tensor if type(tensor) is FakeTensor else local_part(tensor)
    return part.untyped_storage()


def named(storage: torch.UntypedStorage) -> int:
    """What names a storage as long as it lives."""
    key: int = storage._cdata
    return key


def is_owned_once(tensor: torch.Tensor) -> bool:
    """One tensor holds the storage, and the Python view of it that this makes."""
    return _storage_users(tensor.untyped_storage()._cdata) == 2


data_of: Any = ask("torch._C:TensorBase.data")
"""``Tensor.data`` as PyTorch has it."""
make_subclass: Callable[..., torch.Tensor] = ask("torch._C:TensorBase._make_subclass")
"""A tensor of a subclass over the memory of another."""
pointers_are_null: Callable[[torch.Tensor], None] = ask(
    "torch._C:_set_warn_deprecated_on_mutable_data_ptr"
)
"""Whoever asks for the memory of this tensor is told of none, as of any fake tensor."""
dispatch_keys: Callable[[torch.Tensor], Any] = ask("torch._C:_dispatch_keys")
"""Device, layout, and whether it is a conjugate or negative, as PyTorch dispatches by them."""
suggest_memory_format: Callable[[torch.Tensor], torch.memory_format] = ask(
    "torch._prims_common:suggest_memory_format"
)
"""Whether rows or channels come last, as most operators choose for what they make."""
unasked: Callable[[], Any] = ask("torch._C:DisableTorchFunctionSubclass")
"""A context in which no class of tensors is asked about functions."""
swap_contents: Callable[[torch.Tensor, torch.Tensor], None] = ask("torch._C:_swap_tensor_impl")
"""Exchange what two tensors are, and leave the Python objects where they are."""


@contextmanager
def subclasses_made_by(make: Callable[..., Any], data: property) -> Iterator[None]:
    """Subclasses of tensors are made, and given other contents, by functions of ours."""
    made = replaced(torch.Tensor, "_make_subclass", staticmethod(make))
    with made, replaced(torch.Tensor, "data", data):
        yield


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What a DTensor holds on this rank, without a record in autograd; others as they are."""
    held: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return held
