"""Random numbers of operators on the simulated GPU, and choices by unknown ones, drawn here."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from memcalc.engine.host_view import fills_storage, is_plain, tensors_in
from memcalc.engine.values.known import KNOWN, MADE_UP, Numbers
from memcalc.engine.values.rules import (
    HIGHEST,
    LARGE,
    SMALL,
    Followed,
    find_excluded,
    spread_evenly,
)
from memcalc.engine.values.unknown import Later, distribution

_DRAWN = 1 << 16
"""Elements of the largest tensors of unknown shares by which places are drawn."""
_PLACES = 1 << 20
"""The most places that are chosen."""
BALANCED = (
    "`topk`, `argmax` and the like choose each place equally often where scores are not computed "
    "here, as a balanced router does"
)


class Draws:
    """Draws numbers as PyTorch does, with a generator for each GPU."""

    def __init__(
        self,
        numbers: Numbers,
        compute: Callable[[Followed, Any, Any, Any], None],
        say: Callable[[str], None],
    ) -> None:
        self._numbers, self._say = numbers, say
        self._compute = compute
        self._count = 0
        self._chosen: Counter[int] = Counter()
        """Places chosen so far among scores in one row, by their number."""
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
        alone = out.is_contiguous() and fills_storage(out)
        if out.numel() <= LARGE and alone and not any(tensors_in((args[1:], kwargs))):
            self._count += 1
            seed = torch.cuda.default_generators[out.device.index or 0].initial_seed()
            make = functools.partial(_fill, one, args[1:], seed + self._count, out.shape, out.dtype)
            self._numbers.unknown.postpone(out, Later(make, made_up=False), made_up=False)
        return out

    def choose(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Run multinomial; over many unknown shares it chooses all indices equally often."""
        if args[0].numel() > _DRAWN and args[0].is_cuda and self._numbers.state(args[0]) != KNOWN:
            return self.spread(one, args, kwargs)
        return self.draw(one, args, kwargs)

    def spread(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Run an operator that chooses, and let it choose each of unknown scores equally often.

        Among scores in one row a call goes on where the last one ended: a sampler that takes the
        best of a pool, again and again, takes others each time.
        """
        out = one.op(*args, **kwargs)
        place, default = HIGHEST.get(one.op.name(), (4, -1))
        places = out[1] if isinstance(out, tuple) else out
        shift, among = self._numbers.unknown.shift, args[0].numel()
        if args[0].dim() == 1:
            shift += self._chosen[among]
            self._chosen[among] += places.numel()
        dim = args[place] if place < len(args) else kwargs.get("dim", default)
        if places.numel() <= _PLACES and args[0].numel() and is_plain((places, args[0])):
            excluded = self._find_excluded(one, args, kwargs)
            chosen = spread_evenly(places, args[0], dim, shift, excluded)
            self._numbers.write_result(places, chosen, made_up=True)
            self._say(BALANCED)
        return out

    def _find_excluded(self, one: Followed, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Return a mask of the scores that a program has put so low that they are not chosen."""
        scores = args[0]
        if self._numbers.state(scores) != MADE_UP or scores.numel() > LARGE:
            return None
        later = self._numbers.postponed_numbers(scores)
        if (later is not None and not later.depth) or not self._numbers.may_take(scores.numel()):
            return None  # Shares of unknown scores, of which the program wrote none.
        # Only topk has so many arguments.
        largest = args[3] if len(args) > 3 else kwargs.get("largest", "min" not in one.op.name())
        found = self._numbers.host(scores)
        find = functools.partial(find_excluded, found if largest else -found)
        excluded: torch.Tensor | None = self._numbers.time_call(scores.numel(), find)
        return excluded

    def distribute(self, base: str, out: torch.Tensor, dim: int) -> None:
        """Delay the result of a softmax over unknown numbers until read: rows sum to one."""
        if out.numel() <= LARGE and out.is_contiguous() and is_plain((out,)):
            log = base == "_log_softmax"
            make = Later(functools.partial(distribution, out.shape, dim, log=log, dtype=out.dtype))
            self._numbers.unknown.postpone(out, make, made_up=True)

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
