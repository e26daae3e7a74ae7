"""The numbers behind tensors of the simulated GPU: known, made up, or unknown.

The stub driver keeps device memory in memory of the host, and by units of 512 bytes whether
something was put there and whether that is made up.
"""

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from memcalc.engine.followed_operators import MASKS
from memcalc.engine.host_view import Place, one_thread, over, tensors_in
from memcalc.engine.stub import load as stub
from memcalc.engine.unknown import Later, Unknown

UNKNOWN, KNOWN, MADE_UP = range(3)
"""What the numbers of a tensor are, as the stub driver counts them."""
_MOST_SECONDS = 20.0
"""Seconds for all operators over tensors of more than 65,536 elements; then they are unknown."""
_UNIT = 512
"""Bytes for which the stub driver keeps one mark."""
TIMED = 1 << 16
"""Elements of the largest tensors whose time is not taken."""
_ALONE = 1 << 15
"""Elements of the largest tensors that PyTorch computes in one thread by itself: its GRAIN_SIZE."""
_FILLED = 1 << 20
"""Elements of the largest tensors that are filled with one made-up number."""


class Numbers:
    """Reads, writes and marks numbers of tensors on the simulated GPU."""

    def __init__(self, stop_computing: Callable[[], None]) -> None:
        """Begin with the whole time for large tensors.

        Args:
            stop_computing: is called where a tensor stays unknown because the time is spent.
        """
        self.unknown = Unknown()
        self._stop_computing = stop_computing
        self._left = _MOST_SECONDS
        driver = ctypes.CDLL(None)
        self._mark, self._holds = driver.memcalc_stub_mark, driver.memcalc_stub_holds
        self._zero = driver.memcalc_stub_zero
        self._holds.argtypes = self._zero.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._mark.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._mark.restype = self._zero.restype = None

    def held(self, tensor: torch.Tensor) -> int:
        """Return UNKNOWN, KNOWN or MADE_UP for the bytes behind a tensor."""
        if not tensor.is_cuda or tensor.layout is not torch.strided or not tensor.numel():
            return UNKNOWN
        found: int = self._holds(tensor.data_ptr(), _extent(tensor))
        return found

    def state(self, tensor: torch.Tensor) -> int:
        """Return whether the numbers of a tensor are UNKNOWN, KNOWN or MADE_UP."""
        if not tensor.is_cuda or not tensor.numel():
            return KNOWN
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return UNKNOWN
        if found := self.held(tensor):
            return found
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return MADE_UP
        postponed = self.unknown.postponed(tensor)
        return UNKNOWN if postponed is None else MADE_UP if postponed else KNOWN

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the code put the numbers there, or they follow from such."""
        return self.held(tensor) == KNOWN

    def knows_some(self, tensors: Any) -> bool:
        """Return whether one of the tensors holds something, or is the host's."""
        if isinstance(tensors, torch.Tensor):
            tensors = (tensors,)
        for one in tensors:
            if not one.is_cuda or self.held(one) or self.unknown.postponed(one) is not None:
                return True
        return False

    def know(self, tensor: torch.Tensor, value: Any) -> None:
        """Let every element of a tensor on the GPU be this."""
        if tensor.is_cuda and tensor.numel() and stub.maps():
            self.overwrite(tensor)
            over(tensor).fill_(value)
            self.mark(tensor, False)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a CPU tensor with the numbers that a tensor reads as; it may not be written to."""
        if not tensor.is_cuda:
            return tensor
        if tensor.dtype.is_floating_point and tensor.numel() and not self.state(tensor):
            return self.unknown.like(Place.of(tensor))
        self.settle(tensor)
        return over(tensor)

    def settle(self, tensor: torch.Tensor) -> None:
        """Make numbers that were postponed, unless others were written there since."""
        if self.unknown.postponed(tensor) is None:
            return
        if self.held(tensor):
            self.unknown.drop(tensor)
            return
        with contextlib.suppress(Exception), one_thread():
            made = self.unknown.settle(tensor)
            if made is not None:
                self._mark(*made)

    def overwrite(self, tensor: torch.Tensor) -> None:
        """Every element of a tensor is about to be written; others of its storage stay."""
        if tensor.is_cuda and self.unknown.postponed(tensor) is not None:
            whole = tensor.untyped_storage().nbytes() == tensor.nbytes
            (self.unknown.drop if whole else self.settle)(tensor)

    def later(self, tensor: torch.Tensor) -> Later:
        """Return the numbers that a tensor reads as by now, to be made later."""
        state = self.held(tensor)
        if not state and tensor.is_cuda and tensor.is_floating_point():
            found = self.unknown.later(tensor)
            if found is not None:
                return found
            state = self.state(tensor)
        now = self.host(tensor).clone()
        return Later(lambda: now, made_up=state == MADE_UP)

    def put(self, out: Any, made: Any, made_up: bool, *, finite: bool = False) -> None:
        """Write what was computed on the host behind the operator's own result."""
        for one, other in zip(tensors_in((out,)), tensors_in((made,)), strict=False):
            if one.is_cuda and one.numel() and one.shape == other.shape:
                # Memory that is handed out is zero, and pages that stay so cost nothing.
                if one.numel() <= TIMED or _has_some(other):
                    over(one).copy_(other)
                if finite and made_up:
                    self.make_finite(over(one), Place.of(one))
                self.mark(one, made_up)

    def make_finite(self, numbers: torch.Tensor, place: Place) -> None:
        """Replace what is infinite or NaN in numbers that follow from unknown ones."""
        # A sum is finite where all are, but for the rare one that is too large.
        if numbers.is_floating_point() and not math.isfinite(numbers.sum()):
            finite = numbers.isfinite()
            numbers.copy_(torch.where(finite, numbers, self.unknown.like(place)))

    def fill(self, out: torch.Tensor, value: float | bool, *, made_up: bool = True) -> None:
        """Let every element be this value."""
        if value and out.numel() and (out.dtype in MASKS or out.numel() <= _FILLED):
            over(out).fill_(value)
        self.mark(out, made_up)

    def mark(self, tensor: torch.Tensor, made_up: bool) -> None:
        """Note that numbers are there."""
        if tensor.is_cuda and tensor.numel():
            self._mark(tensor.data_ptr(), _extent(tensor), made_up)

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """Something was written there that is not known."""
        for one in tensors:
            if one.is_cuda and one.numel() and one.is_floating_point():
                self.unknown.drop(one)
                alone = one.untyped_storage().nbytes() == one.nbytes
                # Nothing else lies in the last unit of a block.
                self._zero(one.data_ptr(), _extent(one) + (-one.nbytes % _UNIT if alone else 0))

    def may_take(self, most: int) -> bool:
        """Return whether there is time left for tensors of so many elements."""
        if self._left > 0 or most <= TIMED:
            return True
        self._stop_computing()
        return False

    def timed(self, most: int, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute in one thread, where no other waits, and take the time of large tensors."""
        if most <= _ALONE:
            return compute(*args, **kwargs)
        begin = time.perf_counter()
        with one_thread():
            try:
                return compute(*args, **kwargs)
            finally:
                if most > TIMED:
                    self._left -= time.perf_counter() - begin


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    return Place.of(tensor).span * tensor.element_size()


def _has_some(numbers: torch.Tensor) -> bool:
    """Return whether any is not zero; the first rows tell it of most."""
    return bool(numbers.reshape(-1)[:256].any()) or bool(numbers.any())
