"""Makes up numbers in place of those that no kernel computes over the stub driver.

A float that no kernel computed reads as a fixed number between 0.1 and 0.9 that depends only on its
address, so all views of the same memory agree. Rows of a softmax sum to one, and random numbers
have PyTorch's distributions; both are made when they are first read. Whole numbers read as 0 and
booleans as False, because they may be indices and counts.

No such float is zero, infinite or NaN, so code may divide by it or take its logarithm.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memcalc.engine.host_view import Place

LOWEST, HIGHEST = 0.1, 0.9
"""Range of made-up numbers: away from 0 and 1, because thresholds lie near them."""
_PERIOD = 65_521
"""Length of the pattern in elements: a prime, so that rows of usual lengths differ."""
_SEED = 2_147_483_647
DEEPEST = 32
"""The longest chain of postponed computations: Python calls them recursively."""
MOST_MARKED = 256
"""Noted storages above which freed ones are dropped."""


class Postponed(NamedTuple):
    """The numbers of one storage, to be made when they are first read."""

    storage: StorageWeakRef
    make: Callable[[], torch.Tensor]
    made_up: bool
    at: int
    dtype: torch.dtype


class Later:
    """Numbers that are made when they are first needed; they hold no GPU memory."""

    __slots__ = ("_made", "_make", "depth", "made_up")

    def __init__(
        self, make: Callable[[], torch.Tensor], *, depth: int = 0, made_up: bool = True
    ) -> None:
        self._make: Callable[[], torch.Tensor] | None = make
        self._made: torch.Tensor | None = None
        self.depth = depth
        """The length of the chain of computations that make them."""
        self.made_up = made_up

    def __call__(self) -> torch.Tensor:
        """Return the numbers as a CPU tensor."""
        if self._make is not None:
            self._made, self._make = self._make(), None
        assert self._made is not None
        return self._made


class Unknown:
    """The made-up and postponed numbers of tensors on the simulated GPU."""

    def __init__(self) -> None:
        self.vary(1.0)
        self._patterns: dict[torch.dtype, torch.Tensor] = {}
        self._postponed: dict[int, Postponed] = {}
        self._most = MOST_MARKED

    def vary(self, factor: float) -> None:
        """Make up other numbers from now, larger by a factor (smaller below 1).

        Larger ones rise by each optimizer step. Smaller ones fall, and in tensors half of them are
        negative.
        """
        self.shift = int(math.log10(factor))
        """By how many places those lie farther that unknown scores choose."""
        generator = torch.Generator().manual_seed(_SEED + self.shift)
        lowest = -HIGHEST if factor < 1 else LOWEST
        self.ends = lowest * factor, HIGHEST * factor
        """Ends of the numbers that stand in."""
        self._numbers = torch.empty(_PERIOD, dtype=torch.float64, device="cpu")
        self._numbers.uniform_(*self.ends, generator=generator)

    def go_on(self, *_: object) -> None:
        """Scale the made-up numbers a little after an optimizer step, if ``vary`` asked for it."""
        if self.shift and 1e-4 < self.ends[1] < 1e4:
            rise = 1 + self.shift / 50
            self.ends = self.ends[0] * rise, self.ends[1] * rise
            self._numbers *= rise
            self._patterns.clear()

    def like(self, place: Place) -> torch.Tensor:
        """Return a CPU tensor with the made-up numbers of an unknown float tensor at this place."""
        first = place.address // place.dtype.itemsize % _PERIOD
        pattern = self._pattern(place.dtype)
        if first + place.span > len(pattern):
            pattern = pattern.repeat(2 + place.span // _PERIOD)
        found = pattern.as_strided(place.shape, place.stride, first)
        return found.abs() if self.ends[0] < 0 and place.span == 1 else found

    def _pattern(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the made-up numbers in a dtype, twice in a row."""
        if dtype not in self._patterns:
            self._patterns[dtype] = self._numbers.to(dtype).repeat(2)
        return self._patterns[dtype]

    def postpone(
        self, tensor: torch.Tensor, make: Callable[[], torch.Tensor], *, made_up: bool
    ) -> None:
        """Delay the numbers of a new contiguous tensor on the GPU until they are first read.

        Args:
            tensor: a tensor that fills its storage.
            make: returns a CPU tensor of its shape.
            made_up: True if the numbers follow from unknown ones.
        """
        if len(self._postponed) > self._most:
            self.forget_freed()
        storage = tensor.untyped_storage()
        self._postponed[storage._cdata] = Postponed(
            StorageWeakRef(storage), make, made_up, tensor.data_ptr(), tensor.dtype
        )

    def later(self, tensor: torch.Tensor) -> Later | None:
        """Return the numbers of a float tensor that has none in its memory, made when needed.

        Returns:
            None if postponed numbers must be settled first.
        """
        found, place = self._find_entry(tensor), Place.from_tensor(tensor)
        if found is None:
            return Later(lambda: self.like(place))
        make = found.make
        if not isinstance(make, Later) or found.dtype != place.dtype:
            return None
        first = (place.address - found.at) // place.dtype.itemsize
        return Later(
            lambda: make().as_strided(place.shape, place.stride, first),
            depth=make.depth,
            made_up=found.made_up,
        )

    def postponed_kind(self, tensor: torch.Tensor) -> bool | None:
        """Return True if a storage's postponed numbers are made up; None without postponed ones."""
        found = self._find_entry(tensor)
        return None if found is None else found.made_up

    def take(self, tensor: torch.Tensor) -> Postponed | None:
        """Return the postponed numbers of a tensor's storage, and forget them; None without."""
        found = self._find_entry(tensor)
        if found is not None:
            del self._postponed[tensor.untyped_storage()._cdata]
        return found

    def drop(self, tensor: torch.Tensor) -> None:
        """Drop postponed numbers of a tensor's storage, because others were written there."""
        if self._postponed and _has_storage(tensor):
            self._postponed.pop(tensor.untyped_storage()._cdata, None)

    def _find_entry(self, tensor: torch.Tensor) -> Postponed | None:
        if not self._postponed or not _has_storage(tensor):
            return None
        storage = tensor.untyped_storage()
        found = self._postponed.get(storage._cdata)
        if found is None:
            return None
        # Another storage may have taken the place of one that was freed.
        return None if found.storage.expired() or found.at != storage.data_ptr() else found

    def forget_freed(self) -> None:
        """Drop the postponed numbers of freed tensors."""
        kept = {key: one for key, one in self._postponed.items() if not one.storage.expired()}
        self._postponed = kept
        self._most = max(MOST_MARKED, 2 * len(kept))


def _has_storage(tensor: torch.Tensor) -> bool:
    """Return True for a plain strided tensor or parameter."""
    plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    return plain and tensor.layout is torch.strided


def distribution(shape: torch.Size, dim: int, *, log: bool, dtype: torch.dtype) -> torch.Tensor:
    """Return made-up numbers that sum to one along a dimension, or their logarithms."""
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(_SEED), device="cpu")
    rows = (LOWEST + (HIGHEST - LOWEST) * numbers).softmax(dim)
    return (rows.log() if log else rows).to(dtype)
