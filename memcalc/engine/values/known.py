"""Reads and writes the numbers of tensors on the simulated GPU: known, made up or unknown.

The stub driver keeps device memory in host memory. For each unit of 512 bytes it keeps whether
something was written there, and whether that is made up.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memcalc.engine import torch_internals as internals
from memcalc.engine.host_view import (
    Place,
    bytes_at,
    cpu_view,
    fills_storage,
    has_infinite,
    is_plain,
    one_thread,
    tensors_in,
)
from memcalc.engine.stub import load as stub
from memcalc.engine.values.rules import LARGE, MASKS, SMALL
from memcalc.engine.values.unknown import DEEPEST, MOST_MARKED, Later, Unknown

UNKNOWN, KNOWN, MADE_UP = range(3)
"""States of a tensor's numbers, in the stub driver's coding."""
_MOST_SECONDS = 20.0
"""Seconds for all operators over tensors of more than 65,536 elements; later ones are unknown."""
_MOST_AROUND = 1 << 28
"""Elements of all unknown tensors that are written around known numbers: 1 GB of host memory."""
_UNIT = 512
"""Bytes per mark of the stub driver."""
TIMED = 1 << 16
"""Largest tensors, in elements, whose computing time does not count."""
_ALONE = 1 << 10
"""Largest tensors, in elements, that PyTorch computes in one thread anyway: half the share of a
thread in functions such as `sin` and `softmax`."""
_FILLED = 1 << 20
"""Largest tensors, in elements, that are filled with one made-up number."""


class Numbers:
    """The numbers of tensors on the simulated GPU, with their marks."""

    def __init__(self, stop_computing: Callable[[], None]) -> None:
        """Look up the stub driver's functions, and set the time budget for large tensors.

        Args:
            stop_computing: called when a tensor stays unknown because the time is spent.
        """
        self.unknown = Unknown()
        self.on_host: dict[int, StorageWeakRef] = {}
        """The storages of host tensors that hold made-up numbers."""
        self._stop_computing = stop_computing
        self._most_on_host = MOST_MARKED
        self._left, self._room = _MOST_SECONDS, _MOST_AROUND
        self._copied: tuple[StorageWeakRef, object, torch.Tensor] | None = None
        """The last large tensor that was copied: its storage, place and version, and the copy."""
        driver = ctypes.CDLL(None)
        self._mark, self._holds = driver.memcalc_stub_mark, driver.memcalc_stub_holds
        self._zero = driver.memcalc_stub_zero
        self._holds.argtypes = self._zero.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mark.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._mark.restype = self._zero.restype = None

    def read_mark(self, tensor: torch.Tensor) -> int:
        """Return the stub driver's mark of a tensor's bytes: UNKNOWN, KNOWN or MADE_UP."""
        if not tensor.is_cuda or tensor.layout is not torch.strided or not tensor.numel():
            return UNKNOWN
        found: int = self._holds(tensor.data_ptr(), _extent(tensor))
        return found

    def state(self, tensor: torch.Tensor) -> int:
        """Return UNKNOWN, KNOWN or MADE_UP for a tensor's numbers; postponed ones count too."""
        if tensor.is_cpu and self.on_host:
            return MADE_UP if self._is_made_up_on_host(tensor) else KNOWN
        if not tensor.is_cuda or not tensor.numel():
            return KNOWN
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return UNKNOWN
        if found := self.read_mark(tensor):
            return found
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return MADE_UP
        postponed = self.unknown.postponed_kind(tensor)
        return UNKNOWN if postponed is None else MADE_UP if postponed else KNOWN

    def _is_made_up_on_host(self, tensor: torch.Tensor) -> bool:
        """Return True if a host tensor's storage holds made-up numbers."""
        if not is_plain((tensor,)) or internals.is_functorch_tensor(tensor):
            return False
        found = self.on_host.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return True if the program wrote a tensor's numbers, or they follow from such numbers."""
        return self.read_mark(tensor) == KNOWN

    def knows_some(self, tensors: Any) -> bool:
        """Return True if one of the tensors has numbers that are not unknown, or is on the host."""
        if isinstance(tensors, torch.Tensor):
            tensors = (tensors,)
        for one in tensors:
            if (
                not one.is_cuda
                or self.read_mark(one)
                or self.unknown.postponed_kind(one) is not None
            ):
                return True
        return False

    def know(self, tensor: torch.Tensor, value: Any) -> None:
        """Set every element of a tensor on the GPU to a value, and mark it as known."""
        if tensor.is_cuda and tensor.numel() and stub.maps() and self.prepare_write(tensor):
            self.write(tensor, value)
            self.mark(tensor, False)

    def write(self, tensor: torch.Tensor, numbers: Any) -> None:
        """Write numbers, or one for all elements, to the memory of a tensor."""
        put = "copy_" if isinstance(numbers, torch.Tensor) else "fill_"
        self.time_call(tensor.numel(), getattr(cpu_view(tensor), put), numbers)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a read-only CPU tensor with the numbers that a tensor reads as."""
        if not tensor.is_cuda:
            return tensor
        if tensor.dtype.is_floating_point and tensor.numel() and not self.state(tensor):
            return self.unknown.like(Place.from_tensor(tensor))
        self.settle(tensor)
        return cpu_view(tensor)

    def settle(self, tensor: torch.Tensor) -> None:
        """Compute a tensor's postponed numbers, unless others were written there since."""
        if self.unknown.postponed_kind(tensor) is None:
            return
        if self.read_mark(tensor):
            self.unknown.drop(tensor)
            return
        found = self.unknown.take(tensor)
        if found is None:
            return
        with contextlib.suppress(Exception):
            count = tensor.untyped_storage().nbytes() // found.dtype.itemsize
            made = self.time_call(count, found.make).reshape(-1)
            self.write(bytes_at(found.at, found.dtype, made.numel()), made)
            self._mark(found.at, made.nbytes, found.made_up)

    def stays_unknown(self, tensor: torch.Tensor, source: torch.Tensor) -> bool:
        """Return True if unknown numbers are copied to a part of a tensor where none is known."""
        if not (tensor.is_cuda and source.is_cuda and is_plain((tensor, source))):
            return False
        storage = tensor.untyped_storage()
        if fills_storage(tensor) or self.unknown.postponed_kind(tensor) is not None:
            return False
        return not (self.state(source) or self._holds(storage.data_ptr(), storage.nbytes()))

    def prepare_write(self, tensor: torch.Tensor, *, overwrites: bool = True) -> bool:
        """Prepare a tensor for a write on the host: other elements of its storage stay.

        Unknown numbers around a part that is written are written as made-up ones: they would read
        as the zeros that stand there.

        Args:
            tensor: the tensor, on the GPU or the host.
            overwrites: what stands in the tensor does not matter.

        Returns:
            False if the write must be left out, because there are too many numbers around it.
        """
        if not tensor.is_cuda or not is_plain((tensor,)):
            return True
        storage = tensor.untyped_storage()
        whole, at = fills_storage(tensor), storage.data_ptr()
        if whole and overwrites:
            self.unknown.drop(tensor)
            return True
        self.settle(tensor)
        if whole or not tensor.is_floating_point() or self._holds(at, storage.nbytes()):
            return True
        count = storage.nbytes() // tensor.element_size()
        if count > min(LARGE, self._room) or not self.may_take(count):
            if not _fills_units(tensor):
                self._stop_computing()
            return _fills_units(tensor)
        self._room -= count
        around = bytes_at(at, tensor.dtype, count)
        like = self.unknown.like(Place(at, around.shape, (1,), tensor.dtype))
        self.time_call(count, around.copy_, like)
        self._mark(at, around.nbytes, True)
        return True

    def later(self, tensor: torch.Tensor) -> Later:
        """Return the present numbers of a tensor, computed when they are first needed."""
        state = self.read_mark(tensor)
        if not state and tensor.is_cuda and tensor.is_floating_point():
            found = self.unknown.later(tensor)
            if found is not None:
                return found
            state = self.state(tensor)
        now = self._copy(tensor)
        return Later(lambda: now, made_up=state == MADE_UP)

    def postponed_numbers(self, tensor: torch.Tensor) -> Later | None:
        """Return the postponed numbers of a tensor in a storage that is not small; else None.

        Most are random weights and inputs, which no program reads: laid out anew they stay
        postponed.
        """
        if self.unknown.postponed_kind(tensor) is None:
            return None
        if tensor.untyped_storage().nbytes() <= SMALL * tensor.element_size():
            return None
        return None if self.read_mark(tensor) else self.unknown.later(tensor)

    def postpone_copy(self, out: torch.Tensor, source: torch.Tensor, numbers: Later) -> bool:
        """Postpone the numbers of a copy too; else compute the source's, and return False."""
        fills = out.is_contiguous() and fills_storage(out)
        if out.is_cuda and fills and out.shape == source.shape and numbers.depth < DEEPEST:
            dtype, kind = out.dtype, numbers.made_up
            made = Later(lambda: numbers().to(dtype), depth=numbers.depth + 1, made_up=kind)
            self.unknown.postpone(out, made, made_up=kind)
            return True
        self.settle(source)
        return False

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy the present numbers of a tensor; copy a large one again only if it changed.

        A mask is the same for all layers.
        """
        if tensor.numel() <= TIMED or not tensor.is_cuda or tensor.is_inference():
            return self._clone(tensor)
        state = Place.from_tensor(tensor), tensor._version
        if self._copied is not None:
            storage, known, copy = self._copied
            if known == state and not storage.expired():
                return copy
        copy = self._clone(tensor)
        self._copied = StorageWeakRef(tensor.untyped_storage()), state, copy
        return copy

    def _clone(self, tensor: torch.Tensor) -> torch.Tensor:
        copy: torch.Tensor = self.time_call(tensor.numel(), self.host(tensor).clone)
        return copy

    def host_argument(self, written: list[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
        """Return a CPU tensor in place of an argument; over its own memory if it is written."""
        if tensor.is_cuda and any(tensor is one for one in written):
            return cpu_view(tensor)
        return self.host(tensor)

    def write_result(
        self, out: Any, made: Any, made_up: bool, *, finite: Iterable[torch.Tensor] | None = None
    ) -> None:
        """Write a result computed on the host to the memory of the operator's own result.

        ``finite``: what it is computed from; infinite and NaN values that are made up are replaced.
        """
        for one, other in zip(tensors_in((out,)), tensors_in((made,)), strict=False):
            if one.is_cuda and one.numel() and one.shape == other.shape:
                # New memory is zero, and pages that stay zero cost nothing.
                if one.numel() <= TIMED or _has_some(other):
                    self.write(one, other)
                if finite is not None and made_up:
                    place = Place.from_tensor(one)
                    self.time_call(one.numel(), self.make_finite, cpu_view(one), place, finite)
                self.mark(one, made_up)

    def make_finite(
        self, numbers: torch.Tensor, place: Place, given: Iterable[torch.Tensor] = ()
    ) -> None:
        """Replace infinite and NaN values in numbers that follow from unknown ones.

        They stay where those that are ``given`` are infinite too: a program masks scores so.
        """
        if has_infinite(numbers) and not any(map(has_infinite, given)):
            finite = numbers.isfinite()
            numbers.copy_(torch.where(finite, numbers, self.unknown.like(place)))

    def fill(self, out: torch.Tensor, value: float | bool, *, made_up: bool = True) -> None:
        """Set every element of a result to a value, and mark it; large floats are only marked."""
        if value and out.numel() and (out.dtype in MASKS or out.numel() <= _FILLED):
            self.write(out, value)
        self.mark(out, made_up)

    def mark(self, tensor: torch.Tensor, made_up: bool) -> None:
        """Mark a tensor's numbers as known or made up; on the host, in its whole storage."""
        if tensor.is_cuda and tensor.numel():
            made_up = made_up or self.shares_units(tensor)
            self._mark(tensor.data_ptr(), _extent(tensor), made_up)
        elif made_up and tensor.is_cpu and is_plain((tensor,)):
            if len(self.on_host) >= self._most_on_host:
                kept = {at: one for at, one in self.on_host.items() if not one.expired()}
                self.on_host.clear()
                self.on_host.update(kept)
                self._most_on_host = max(MOST_MARKED, 2 * len(kept))
            storage = tensor.untyped_storage()
            self.on_host[storage._cdata] = StorageWeakRef(storage)

    def shares_units(self, tensor: torch.Tensor) -> bool:
        """Return True for a part of a tensor that has made-up numbers of others in its units."""
        if fills_storage(tensor):
            return False
        return not _fills_units(tensor) and self.read_mark(tensor) == MADE_UP

    def count(self, op: Any, tensor: Any, *others: Any, **kwargs: Any) -> bool:
        """Run an operator that updates a counter by a number on the host, as batch norms do.

        Returns:
            False, without a run, for anything else than one known number and Python's numbers.
        """
        if len(others) != 1 or type(others[0]) not in (int, float) or not is_plain((tensor,)):
            return False
        if tensor.numel() != 1 or not self.knows(tensor):
            return False
        if not torch.cuda.is_current_stream_capturing():
            op(cpu_view(tensor), *others, **kwargs)
        return True

    def carry_on_host(self, given: Any, made: Iterable[torch.Tensor]) -> None:
        """Mark results on the host as made up if a given tensor there is."""
        if any(one.is_cpu and self._is_made_up_on_host(one) for one in tensors_in(given)):
            for one in made:
                self.mark(one, made_up=True)

    def forget(self, tensors: Iterable[torch.Tensor], *, integers: bool = False) -> None:
        """Mark float tensors, or all, as unknown, after a write of unknown numbers."""
        for one in tensors:
            if one.is_cuda and one.numel() and (integers or one.is_floating_point()):
                self.unknown.drop(one)
                if not self._holds(one.data_ptr(), _extent(one)):
                    continue
                storage = one.untyped_storage()
                if fills_storage(one) or not self._holds(storage.data_ptr(), storage.nbytes()):
                    self.erase(one)
                elif one.numel() <= LARGE and self.may_take(one.numel()):
                    # Beside known numbers, those that are zero would read as known.
                    made_up = self.unknown.like(Place.from_tensor(one))
                    self.write(one, made_up if one.is_floating_point() else 0)
                    self.mark(one, made_up=True)
                else:
                    self._zero(one.data_ptr(), _extent(one))

    def erase(self, tensor: torch.Tensor) -> None:
        """Mark all units of a tensor as unknown: nothing that is known lies beside it."""
        begin, end = tensor.data_ptr(), tensor.data_ptr() + _extent(tensor)
        begin -= begin % _UNIT
        self._zero(begin, end + -end % _UNIT - begin)

    def may_take(self, most: int) -> bool:
        """Return True if the time budget allows computing tensors of ``most`` elements."""
        if self._left > 0 or most <= TIMED:
            return True
        self._stop_computing()
        return False

    def time_call(self, most: int, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in one thread, and subtract its time from the budget for large tensors.

        The threads of OpenMP spin for a while after each call, which costs more than they save.

        Args:
            most: elements of the largest tensor.
            compute: the function.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        if most <= _ALONE:
            return compute(*args, **kwargs)
        begin = time.thread_time()
        with one_thread():
            try:
                return compute(*args, **kwargs)
            finally:
                if most > TIMED:
                    self._left -= time.thread_time() - begin


def _extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    return Place.from_tensor(tensor).span * tensor.element_size()


def _fills_units(tensor: torch.Tensor) -> bool:
    """Return True if nothing else lies in the units of a tensor."""
    return tensor.is_contiguous() and not (tensor.nbytes | tensor.data_ptr()) % _UNIT


def _has_some(numbers: torch.Tensor) -> bool:
    """Return True if a number is not zero; for most tensors the first 256 are enough."""
    return bool(numbers.reshape(-1)[:256].any()) or bool(numbers.any())
