"""Random numbers of operators on the simulated GPU, drawn on the host."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from memcalc.engine.host_view import is_plain, tensors_in
from memcalc.engine.values.known import Numbers
from memcalc.engine.values.rules import LARGE, SMALL, Followed


class Draws:
    """Draws numbers as PyTorch does, with a generator for each GPU."""

    def __init__(
        self, numbers: Numbers, compute: Callable[[Followed, Any, Any, Any], None]
    ) -> None:
        self._numbers = numbers
        self._compute = compute
        self._count = 0
        self._generators: dict[int, torch.Generator] = {}

    def draw(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Run a random operator, and draw its numbers on the host; large floats when read."""
        out = one.op(*args, **kwargs)
        if not out.is_cuda or not is_plain((out,)) or torch.cuda.is_current_stream_capturing():
            return out
        if not out.is_floating_point() or out.numel() <= SMALL:
            drawn = functools.partial(self._draw_now, one, out.device.index)
            self._compute(dataclasses.replace(one, op=drawn), args, kwargs, out)
            return out
        self._numbers.forget((out,))
        alone = out.is_contiguous() and out.untyped_storage().nbytes() == out.nbytes
        if out.numel() <= LARGE and alone and not any(tensors_in((args[1:], kwargs))):
            self._count += 1
            seed = torch.cuda.default_generators[out.device.index or 0].initial_seed()
            make = functools.partial(_fill, one, args[1:], seed + self._count, out.shape, out.dtype)
            self._numbers.unknown.postpone(out, make, made_up=False)
        return out

    def _draw_now(self, one: Followed, device: int | None, /, *args: Any, **kwargs: Any) -> Any:
        """Run a random operator on the host with the generator of a GPU."""
        generator = self._generator(device)
        if one.draws:
            return one.op(*args, **{**kwargs, "generator": generator})
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(generator.get_state())
            made = one.op(*args, **kwargs)
            generator.set_state(torch.get_rng_state())
        return made

    def _generator(self, device: int | None) -> torch.Generator:
        """Return the host's generator that draws for a GPU, made at first use."""
        index = device or 0
        if index not in self._generators:
            seed = torch.cuda.default_generators[index].initial_seed()
            self._generators[index] = torch.Generator().manual_seed(seed)
        return self._generators[index]


def _fill(
    one: Followed, settings: Any, seed: int, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return the random numbers of an operator that fills a tensor in place."""
    made = torch.empty(shape, dtype=dtype, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    one.op(made, *settings, generator=generator)
    return made
