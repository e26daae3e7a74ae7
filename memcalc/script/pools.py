"""Private pools of memory: those of CUDA graphs, and those that a script makes.

Source: ``beginAllocateToPool``, ``endAllocateToPool`` and ``releasePool`` in
c10/cuda/CUDACachingAllocator.cpp, and torch/cuda/memory.py (2.11 and 2.13).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from memcalc.allocator.replay import Op
from memcalc.trace.streams import POOLS
from memcalc.trace.torch_private.engine import current_node

PoolId = tuple[int, int]
"""As PyTorch names pools: the second number where a script asked for one."""


class Pools:
    """Which private pool the present allocations go to, and who still uses which.

    Args:
        tell: told what becomes of the streams within a pool.
    """

    def __init__(self, tell: Callable[[Op, int], None]) -> None:
        self._tell = tell
        self._uses: Counter[PoolId] = Counter()
        self._numbers: dict[tuple[PoolId, int], int] = {}
        self._active: list[tuple[PoolId, bool]] = []
        self._named = itertools.count(1)

    @property
    def capturing(self) -> bool:
        """A CUDA graph is being captured."""
        return any(captures for _, captures in self._active)

    def new(self, *, asked: bool) -> PoolId:
        """The name of a new pool, for a graph by itself or because somebody asked for one."""
        number = next(self._named)
        return (0, number) if asked else (number, 0)

    def begin(self, pool: PoolId, *, captures: bool) -> None:
        """Allocations go there from now on; the pool has one more user."""
        self.hold(pool)
        self._active.append((pool, captures))

    def end(self, pool: PoolId) -> None:
        """Allocations go where they went before."""
        self._active = [held for held in self._active if held[0] != pool]

    def hold(self, pool: PoolId) -> None:
        """A pool has one more user."""
        self._uses[pool] += 1
        if self._uses[pool] == 1:
            self._all(pool, Op.KEEP_POOL)

    def release(self, pool: PoolId) -> None:
        """A pool has one user less; without any, what is free in it may be given back."""
        self._uses[pool] -= 1
        if not self._uses[pool]:
            self._all(pool, Op.LET_GO_POOL)

    def empty(self, pool: PoolId) -> None:
        """Give back what is free in a pool."""
        self._all(pool, Op.EMPTY_POOL)

    def uses(self, pool: PoolId) -> int:
        """How many use a pool."""
        return self._uses[pool]

    def stream_of(self, stream: int) -> int:
        """The number under which the allocator keeps what is made on a stream now."""
        for pool, captures in self._active:
            # A script's own pool serves its thread alone, and the engine runs another.
            if captures or current_node() is None:
                return self._number(pool, stream)
        return stream

    def _number(self, pool: PoolId, stream: int) -> int:
        number = self._numbers.get((pool, stream))
        if number is None:
            number = self._numbers[pool, stream] = POOLS + len(self._numbers)
            self._tell(Op.KEEP_POOL, number)
        return number

    def _all(self, pool: PoolId, what: Op) -> None:
        for (held, _), number in self._numbers.items():
            if held == pool:
                self._tell(what, number)
