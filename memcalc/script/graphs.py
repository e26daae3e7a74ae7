"""CUDA graphs and private pools: a capture runs its code once, and a replay does nothing.

Source: aten/src/ATen/cuda/CUDAGraph.cpp, ``capture_begin``, ``capture_end`` and ``reset``, and
torch/cuda/graphs.py (2.11 and 2.13). Where they differ, both were seen over the stand-in driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.script.gpu import GpuMemory
from memcalc.script.patches import Patches
from memcalc.script.phases import Phases
from memcalc.script.pools import PoolId
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace import streams

_NODES = "what CUDA keeps for the nodes of graphs"
_STATES_OF_EACH = (2, 12)
"""From this PyTorch on each graph has states of random generators of its own."""


def install(
    patches: Patches, recorder: ScriptRecorder, phases: Phases, version: tuple[int, int]
) -> None:
    """Let scripts capture graphs and make pools.

    Args:
        patches: the session's.
        recorder: the session's.
        phases: told of optimizer steps that are replayed.
        version: of PyTorch, whose graphs they are.
    """
    memory, graphs = recorder.memory, torch.cuda.graphs
    makes = _Makes(recorder, phases, version)
    given = {
        "CUDAGraph": type("CUDAGraph", (_Graph,), {"_makes": makes}),
        "graph_pool_handle": lambda: memory.pools.new(asked=True),
        "is_current_stream_capturing": lambda: memory.pools.capturing,
    }
    for name, value in given.items():
        for module in (torch.cuda, graphs):
            patches.set(module, name, value)
    patches.set(torch._C, "_cuda_isCurrentStreamCapturing", given["is_current_stream_capturing"])
    patches.set(torch._C, "_host_emptyCache", lambda: None)
    patches.set(graphs.graph, "default_capture_stream", None)
    pool = type("MemPool", (_Pool,), {"_memory": memory})
    own = torch.cuda.memory
    for module in (torch.cuda, own):
        patches.set(module, "MemPool", pool)
    begin: Callable[..., None] = lambda _, pool: memory.pools.begin(pool, captures=False)  # noqa: E731
    patches.set(own, "_cuda_beginAllocateCurrentThreadToPool", begin)
    patches.set(own, "_cuda_endAllocateToPool", lambda _, pool: memory.pools.end(pool))
    patches.set(own, "_cuda_releasePool", lambda _, pool: memory.pools.release(pool))


class _Makes:
    """What graphs share: the recorder, the phases, and the states of generators."""

    def __init__(self, recorder: ScriptRecorder, phases: Phases, version: tuple[int, int]) -> None:
        self.recorder, self.phases = recorder, phases
        self.memory = recorder.memory
        self.each_has_states = version >= _STATES_OF_EACH
        self._states: list[torch.Tensor] = []

    def states(self) -> list[torch.Tensor]:
        """Seed and offset that the kernels of a captured graph read."""
        if self.each_has_states:
            # They outlive the capture, and are of the stream that everybody uses.
            with streams.use(streams.DEFAULT):
                return self._new()
        if not self._states:
            self._states = self._new()
        return []

    def _new(self) -> list[torch.Tensor]:
        return [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(2)]


class _Graph:
    """Stands for ``torch.cuda.CUDAGraph``."""

    _makes: _Makes

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: PoolId | None = None
        self._captured = False
        self._states: list[torch.Tensor] = []
        self._stepped: list[Any] = []
        self._stream = 0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Allocate to a pool from now on."""
        stream = streams.current()
        if self._captured:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        if stream is streams.DEFAULT:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        pools = self._makes.memory.pools
        self._makes.recorder.uncounted[_NODES] = None
        self._states = self._makes.states()
        self._stream = stream.stream_id
        self._pool = pools.new(asked=False) if pool is None else tuple(pool)
        self._before = self._makes.phases.made()
        pools.begin(self._pool, captures=True)

    def capture_end(self) -> None:
        """Allocate where it was done before."""
        if self._pool is None:
            raise RuntimeError("capture_end() called before capture_begin().")
        self._makes.memory.pools.end(self._pool)
        self._captured = True
        made = self._makes.phases.made()
        self._stepped = [owner for owner, count in made.items() if count != self._before.get(owner)]

    def replay(self) -> None:
        """Nothing is computed; optimizer steps inside count as made."""
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for owner in self._stepped:
            with self._makes.phases.one_step(owner):
                pass

    def reset(self) -> None:
        """Let the graph go."""
        if not self._captured or self._pool is None:
            return
        self._captured = False
        while self._states:
            self._states.pop()
        if self._makes.each_has_states:
            self._makes.recorder.clear_workspaces(self._stream)
        self._makes.memory.pools.release(self._pool)

    def pool(self) -> Any:
        """The pool, for other graphs."""
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def instantiate(self) -> None:
        """Nothing is left to be done."""

    enable_debug_mode = instantiate

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to show."""

    def __del__(self) -> None:
        self.reset()


class _Pool:
    """Stands for ``torch.cuda.MemPool``."""

    _memory: GpuMemory

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self.id = self._memory.pools.new(asked=True)
        self._memory.pools.hold(self.id)

    def use_count(self) -> int:
        """How many use it."""
        return self._memory.pools.uses(self.id)

    def snapshot(self, include_traces: bool = True) -> Any:
        """As ``torch.cuda.memory_snapshot``, of everything."""
        return torch.cuda.memory_snapshot()

    def __del__(self) -> None:
        self._memory.pools.release(self.id)
        self._memory.pools.empty(self.id)
