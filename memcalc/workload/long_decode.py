"""Long generations: most passes of the middle grow the cache alone.

A pass of a large model takes as long as its layers do, and only the cache tells one pass from the
next. So between the first passes and the last, the cache's own code adds keys and values of the
shapes that a real pass gave it, and the model's layers do not run. What they would make dies in its
pass, and only what looks back on the cache differs in size from pass to pass.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from memcalc.workload import cache_layers

Between = Callable[[bool], None]
FIRST = 64
"""Passes at the start that run whole."""
LAST = 4
"""Passes at the end that run whole."""
LONG = 256
"""Passes of the shortest generation in which some do not run whole."""


def is_long(tokens: int | None) -> bool:
    """Return True if a generation of this many tokens skips passes in its middle."""
    return tokens is not None and tokens >= LONG


def note(tokens: int) -> str:
    """Return a note on the passes that a long generation skips."""
    return (
        f"passes {FIRST + 1:,} to {tokens - LAST:,} only grow the cache; the model's layers are "
        f"not run"
    )


def shorten(model: Any, tokens: int, between: Between) -> None:
    """Make a generation's middle passes only grow the KV cache, without running the model."""
    run = model.forward
    passes = _Passes(tokens, between)

    @functools.wraps(run)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return passes.next(run, args, kwargs)

    model.forward = forward


class _Passes:
    """Counts passes, and decides which of them run whole."""

    def __init__(self, tokens: int, between: Between) -> None:
        self._tokens = tokens
        self._between = between
        self._number = 0
        self._updates: list[tuple[Any, ...]] = []
        """What a whole pass gave the cache: shapes, dtype, and the other arguments."""
        self._outputs: Any = None
        self._logits: Any = None

    def next(self, run: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the next forward pass, or only grow the cache and return empty logits."""
        self._number += 1
        cache = _find_cache(kwargs)
        if self._number == FIRST and cache is not None:
            return self._record_pass(run, args, kwargs, cache)
        if self._number == self._tokens - LAST + 1 and self._updates:
            self._between(False)
            self._updates, self._outputs = [], None
        if not self._updates:
            # A cache that does not grow in this way: all passes run whole.
            return run(*args, **kwargs)
        if self._number == FIRST + 1:
            self._between(True)
        for key, value, dtype, device, more, named in self._updates:
            cache.update(
                torch.empty(key, dtype=dtype, device=device),
                torch.empty(value, dtype=dtype, device=device),
                *more,
                **named,
            )
        # What the model returns, with logits of this pass's own.
        outputs, (shape, dtype, device) = copy.copy(self._outputs), self._logits
        outputs["logits"] = torch.empty(shape, dtype=dtype, device=device)
        return outputs

    def _record_pass(self, run: Any, args: Any, kwargs: dict[str, Any], cache: Any) -> Any:
        """Run a pass, recording its cache updates and outputs for the passes to skip."""
        update = cache.update

        def record(key: torch.Tensor, value: torch.Tensor, *more: Any, **named: Any) -> Any:
            self._updates.append((key.shape, value.shape, key.dtype, key.device, more, named))
            return update(key, value, *more, **named)

        cache.update = record
        try:
            outputs = run(*args, **kwargs)
        finally:
            del cache.update
        logits = outputs["logits"]
        self._logits = logits.shape, logits.dtype, logits.device
        self._outputs = copy.copy(outputs)
        self._outputs["logits"] = None
        return outputs


def _find_cache(kwargs: dict[str, Any]) -> Any:
    """Return the KV cache among a forward's arguments, or None if it cannot grow by update."""
    given = next((kwargs[name] for name in cache_layers.NAMES if kwargs.get(name)), None)
    given = getattr(given, "self_attention_cache", given)
    return given if hasattr(given, "update") and hasattr(given, "layers") else None
