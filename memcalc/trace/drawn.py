"""Random numbers that a script draws on the GPU: others than the GPU's, as they are distributed.

What a script masks by them decides how much it computes: a masked language model its logits, a
detector its boxes. Which numbers a GPU draws follows from its generator's seed and offset, which
grows with every draw by as much as the kernel needs, and so it is here: a generator that is seeded
or set back draws the same again, as activations that are made again have to.

Source: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``philox_cuda_state`` (2.13).
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import torch

MOST = 1 << 20
"""Elements that are drawn at most; of more, nothing is known."""
MOST_REAL = 1 << 18
"""The same of real numbers: weights of small layers that a script makes by itself among them."""
SAID = (
    "random numbers that the script draws on the GPU and decides by are others than the GPU's, "
    "distributed alike: a GPU decides otherwise by as much as chance does"
)
Behind = Callable[[Any, torch.device], tuple[int, int] | None]
"""Given the generator that has just drawn (``None``: the device's own) and the device: its seed and
its offset behind that; ``None``: nobody can say. Called once for each draw that is followed."""
_aten = torch.ops.aten


def _overloads(*names: str) -> Iterator[Any]:
    for name in names:
        packet = getattr(_aten, name)
        yield from (getattr(packet, one) for one in packet.overloads() if "out" not in one)


FRESH = frozenset(
    _overloads(
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("uniform_", "normal_", "random_", "exponential_", "cauchy_", "log_normal_"),
        *("geometric_", "bernoulli_"),
    )
) - {_aten.bernoulli_.Tensor} | {_aten.normal.float_float, _aten.bernoulli.p}
"""Operators that draw whatever their first tensor holds."""
_BY_INPUTS = frozenset(
    _overloads("multinomial", "poisson", "binomial", "native_dropout", "_standard_gamma")
) | {_aten.bernoulli.default, _aten.bernoulli_.Tensor, _aten.normal.Tensor_Tensor}
DRAWS = FRESH | _BY_INPUTS
"""Operators whose draws are followed."""


class Sequences:
    """Which draw of an operator by a seed is the how-manieth, whatever else was drawn between.

    Args:
        behind: asks the generator.
    """

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self._ended: dict[tuple[int, int], list[int]] = {}
        """Offsets behind the draws, by operator and seed."""

    def turn(self, func: Any, generator: Any, device: torch.device) -> tuple[int, ...] | None:
        """Operator, seed, and how many such draws came before this one; ``None``: not known."""
        behind = self._behind(generator, device)
        if behind is None:
            return None
        seed, offset = behind
        kind = zlib.crc32(func.name().encode()), seed
        ended = self._ended.setdefault(kind, [])
        number = bisect_left(ended, offset)
        if number == len(ended) or ended[number] != offset:
            ended.insert(number, offset)
        return *kind, number


class Drawn:
    """An operator that draws from one place in a generator's sequence, on the host.

    Args:
        func: the operator.
        turn: what decides which numbers it draws (``Sequences``).
        used: called when somebody wants to know the numbers.
    """

    __slots__ = ("_schema", "_turn", "_used", "func")
    tags = ()
    """It draws the same whenever it is called."""

    def __init__(self, func: Any, turn: tuple[int, ...], used: Callable[[], None]) -> None:
        self.func = func
        self._schema = func._schema
        self._turn = turn
        self._used = used

    @property
    def fresh(self) -> bool:
        """It draws whatever its first tensor holds."""
        return self.func in FRESH

    def name(self) -> str:
        """The operator's."""
        found: str = self.func.name()
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Draw."""
        self._used()
        if "generator" in kwargs:
            # It is the device's.
            kwargs["generator"] = None
        own = torch.default_generator
        state = own.get_state()
        own.manual_seed(hash(self._turn) & ((1 << 63) - 1))
        try:
            return self.func(*args, **kwargs)
        finally:
            own.set_state(state)


def few(out: Any) -> bool:
    """So few numbers are drawn that they are followed."""
    for one in out if isinstance(out, list | tuple) else (out,):
        if not isinstance(one, torch.Tensor) or one.layout is not torch.strided:
            return False
        if one.numel() > (MOST_REAL if one.dtype.is_floating_point else MOST):
            return False
    return True


def fills_weight(func: Any, args: tuple[Any, ...]) -> bool:
    """It draws a layer's weights, which nobody decides by and which training changes."""
    return func._schema.is_mutable and isinstance(args[0], torch.nn.Parameter)
