"""Copies that cuFFT's transforms make of what they are given.

What is not transformed is one dimension to the library: where dimensions cannot be seen as one, as
they lie, they are copied. Sizes and strides follow aten/src/ATen/native/cuda/SpectralOps.cpp,
``_exec_fft``, ``_fft_r2c_cufft``, ``_fft_c2c_cufft`` and ``_fft_c2r_cufft``, and CuFFTPlanCache.h,
``as_cufft_embed`` (2.13).
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.trace.scratch.shapes import Reader, bytes_of

_AT_ONCE = 3
"""Dimensions that the library transforms in one step."""
Sizes = tuple[int, ...]


class _Steps:
    """Transforms of one tensor after another, and what they take beside the last result."""

    def __init__(self, given: torch.Tensor) -> None:
        self.shape: Sizes = tuple(given.shape)
        self.strides: Sizes = tuple(given.stride())
        self.bytes = bytes_of(given)
        """Of what is transformed next."""
        self.events: list[int] = []
        self.births = 0

    def take(self, nbytes: int) -> int:
        """Something is born; its number."""
        self.events.append(nbytes)
        self.births += 1
        return self.births - 1

    def release(self, number: int) -> None:
        """It is let go."""
        self.events.append(~number)

    def transform(self, dims: list[int], shape: Sizes, nbytes: int) -> None:
        """One step; its result has this shape and as many bytes."""
        batch = [dim for dim in range(len(shape)) if dim not in dims]
        batch.sort(key=lambda dim: -self.strides[dim])
        wide = [dim for dim in batch if self.shape[dim] != 1]
        apart = any(
            self.strides[one] != self.strides[other] * self.shape[other]
            for one, other in pairwise(wide)
        )
        if apart or not self._embedded(wide[-1:], dims):
            self.release(self.take(self.bytes))
        strides, step = [0] * len(shape), 1
        for dim in reversed([*batch, *dims]):
            strides[dim] = step
            step *= shape[dim]
        self.shape, self.strides, self.bytes = shape, tuple(strides), nbytes

    def _embedded(self, inner: list[int], dims: list[int]) -> bool:
        """The library can tell how it lies: each stride is so many of the next one."""
        last = self.strides[dims[-1]]
        if last <= 0 or any(self.strides[dim] == 0 for dim in inner):
            return False
        for dim in reversed(dims[:-1]):
            if self.shape[dim] == 1:
                continue
            if self.strides[dim] <= 0 or self.strides[dim] % last:
                return False
            last = self.strides[dim]
        return True

    def rows(self) -> None:
        """What is transformed next was copied into rows."""
        self.strides = tuple(prod(self.shape[at + 1 :]) for at in range(len(self.shape)))

    def complex(self, dims: list[int], shape: Sizes, nbytes: int, held: int | None = None) -> None:
        """From complex numbers to complex ones; the result before is ``held``, if it is our own."""
        left = list(dims)
        while left:
            left.sort(key=lambda dim: -self.strides[dim])
            self.transform(left[-_AT_ONCE:], shape, nbytes)
            left = left[:-_AT_ONCE]
            if left and held is None:
                held = self.take(nbytes)
        if held is not None:
            self.release(held)

    def call(self) -> KernelCall:
        """What was taken, beside the library's own workspace."""
        return KernelCall("fourier", (tuple(self.events),))


def _to_complex(args: tuple[Any, ...], out: Any) -> KernelCall:
    given, dims = args[0], _dims(args)
    half = list(given.shape)
    half[dims[-1]] = half[dims[-1]] // 2 + 1
    steps, whole = _Steps(given), tuple(out.shape)
    if _in_one(dims):
        steps.transform(dims, whole, bytes_of(out))
        return steps.call()
    shape = whole if len(dims) == 1 else tuple(half)
    steps.transform(dims[-1:], shape, bytes_of(out))
    steps.complex(dims[:-1], shape, bytes_of(out), steps.take(bytes_of(out)))
    return steps.call()


def _both_complex(args: tuple[Any, ...], out: Any) -> KernelCall:
    steps = _Steps(args[0])
    steps.complex(_dims(args), tuple(out.shape), bytes_of(out))
    return steps.call()


def _to_real(args: tuple[Any, ...], out: Any) -> KernelCall:
    """The library spoils what it is given, and gets a copy, or what other steps made."""
    dims, steps = _dims(args), _Steps(args[0])
    copy = steps.take(steps.bytes)
    if _in_one(dims) or len(dims) == 1:
        steps.rows()
    else:
        steps.complex(dims[:-1], steps.shape, steps.bytes)
        dims = dims[-1:]
    steps.transform(dims, tuple(out.shape), bytes_of(out))
    steps.release(copy)
    return steps.call()


def _dims(args: tuple[Any, ...]) -> list[int]:
    return [dim % args[0].dim() for dim in args[1]]


def _in_one(dims: list[int]) -> bool:
    return len(dims) <= _AT_ONCE and dims[:2] != [0, 1]


READERS: dict[str, Reader] = {
    "_fft_r2c": _to_complex,
    "_fft_c2c": _both_complex,
    "_fft_c2r": _to_real,
}
