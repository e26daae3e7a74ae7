"""Makes CPU tensors over the bytes of tensors on the simulated GPU."""

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

_BEGIN = 64
"""Lowest address of a view: a multiple of the sizes of all elements."""


class Place(NamedTuple):
    """The place of a tensor's numbers in memory."""

    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> "Place":
        """Return the place of a tensor's numbers."""
        return cls(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)

    @property
    def span(self) -> int:
        """The number of elements from the first to the last in memory."""
        steps = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)


@functools.cache
def _address_space(dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor over all addresses, from which views are made."""
    memory = (ctypes.c_char * ((1 << 48) - _BEGIN)).from_address(_BEGIN)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def cpu_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the bytes of a tensor on the simulated GPU."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    first = (tensor.data_ptr() - _BEGIN) // tensor.element_size()
    return _address_space(tensor.dtype).as_strided(tensor.shape, tensor.stride(), first)


def bytes_at(address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return a one-dimensional CPU tensor of ``count`` elements over the bytes at an address."""
    return _address_space(dtype).as_strided((count,), (1,), (address - _BEGIN) // dtype.itemsize)


def map_tensors(value: Any, view: Callable[[torch.Tensor], Any]) -> Any:
    """Return an operator's arguments for a run on the host: tensors and devices are replaced.

    Args:
        value: an argument, or lists and dicts of them.
        view: returns the replacement of a tensor.
    """
    kind = type(value)
    if kind in _NUMBERS:
        return value
    if kind is list or kind is tuple:
        return kind([map_tensors(one, view) for one in value])
    if isinstance(value, torch.Tensor):
        return view(value)
    if kind is dict:
        return {name: map_tensors(one, view) for name, one in value.items() if name != "pin_memory"}
    if kind is torch.device:
        return torch.device("cpu")
    return None if kind is torch.Generator else value


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments, and in lists and dicts of them."""
    found: list[torch.Tensor] = []
    for one in values.values() if isinstance(values, dict) else values:
        kind = type(one)
        if kind in _NUMBERS:
            continue
        if kind is torch.Tensor or isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, list | tuple | dict):
            found += tensors_in(one)
    return found


_NUMBERS = frozenset((int, float, bool, str, type(None), torch.dtype))
"""Types of most arguments that are no tensors."""


def is_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if all are plain strided tensors on the GPU or the host, and no subclasses."""
    for one in tensors:
        if type(one) is not torch.Tensor and type(one) is not torch.nn.Parameter:
            return False
        if not (one.is_cuda or one.is_cpu) or one.layout is not torch.strided:
            return False
    return True


def largest_plain(*groups: Sequence[torch.Tensor]) -> int:
    """Return the largest tensor's elements; 0 if none is on the GPU, or any is not plain."""
    most, on_gpu = 0, False
    for group in groups:
        if not is_plain(group):
            return 0
        for one in group:
            most = max(most, one.numel())
            on_gpu |= one.is_cuda
    return most if on_gpu else 0


def fills_storage(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has as many bytes as its storage: no other lies beside it."""
    return bool(tensor.untyped_storage().nbytes() == tensor.nbytes)


def has_infinite(numbers: torch.Tensor) -> bool:
    """Return True if a float tensor on the host has infinite or NaN values."""
    # The sum is finite if all numbers are, except for a rare sum that is too large.
    sums = numbers.is_floating_point() and not math.isfinite(numbers.sum())
    return sums and not bool(numbers.isfinite().all())


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch in one thread inside the block: small work is slower in several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
