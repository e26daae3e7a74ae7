"""CPU tensors over the bytes of small tensors of the simulated GPU."""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

_BEGIN = 64
"""Address of the first byte that is looked at: a multiple of the sizes of all elements."""


class Place(NamedTuple):
    """Where the numbers of a tensor lie."""

    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Place":
        """Return the place of a tensor."""
        return cls(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        steps = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)


@functools.cache
def _everything(dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor over all addresses, of which others are views."""
    memory = (ctypes.c_char * ((1 << 48) - _BEGIN)).from_address(_BEGIN)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def over(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the bytes of one on the GPU."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    first = (tensor.data_ptr() - _BEGIN) // tensor.element_size()
    return _everything(tensor.dtype).as_strided(tensor.shape, tensor.stride(), first)


def bytes_at(address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return a CPU tensor of one dimension over the bytes at an address."""
    return _everything(dtype).as_strided((count,), (1,), (address - _BEGIN) // dtype.itemsize)


def on_host(value: Any, view: Callable[[torch.Tensor], Any]) -> Any:
    """Return the same arguments for an operator that runs on the host.

    Args:
        value: arguments, or one of them.
        view: returns what stands for a tensor.
    """
    kind = type(value)
    if kind in _NUMBERS:
        return value
    if kind is list or kind is tuple:
        return kind([on_host(one, view) for one in value])
    if isinstance(value, torch.Tensor):
        return view(value)
    if kind is dict:
        return {name: on_host(one, view) for name, one in value.items() if name != "pin_memory"}
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
    """Each has its numbers in one storage on the GPU or on the host."""
    for one in tensors:
        if type(one) is not torch.Tensor and type(one) is not torch.nn.Parameter:
            return False
        if not (one.is_cuda or one.is_cpu) or one.layout is not torch.strided:
            return False
    return True


def largest_plain(*groups: Sequence[torch.Tensor]) -> int:
    """Return the elements of the largest tensor; 0 if none is on the GPU, or one is not plain."""
    most, on_gpu = 0, False
    for group in groups:
        if not is_plain(group):
            return 0
        for one in group:
            most = max(most, one.numel())
            on_gpu |= one.is_cuda
    return most if on_gpu else 0


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """So little work takes longer where threads have to wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
