"""Records phases and module names while a plan's program trains, on a GPU or on the CPU."""

import contextlib
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules

from memcalc.engine import nccl_traffic
from memcalc.engine import torch_internals as internals
from memcalc.engine.notes import AtWork, Gap, Interval, Notebook, Notes, named
from memcalc.records.trace import Component, Phase

_MANY = 25_000
"""Births and deaths of a step whose operators are not worth the time of PyTorch's profiler, which
takes a second for as many. Scratch of kernels then counts as temporary."""


class Recorder(Notes, Notebook):
    """Follows a program phase by phase, as a ``Watch`` of its loop.

    ``watched`` says which steps are followed module by module and, with PyTorch's profiler,
    operator by operator; ``detailed`` does so whatever time it takes, and learns the dtype of every
    block; without ``named`` no operators are learned, and a third of a run's time is saved.
    """

    def __init__(
        self,
        *,
        device: int = 0,
        watched: Iterable[int] = (),
        detailed: bool = False,
        named: bool = True,
    ) -> None:
        super().__init__(device)
        self.notes = [self]
        self.model: torch.nn.Module | None = None
        self.optimizer: Any = None
        self.kept_on_host = 0
        """Bytes of a cache in host memory, when the last pass ended."""
        self.paths: dict[int, str] = {}
        """Of modules, by their ids, where a wrapper changes them."""
        self._watched, self._detailed, self._named = frozenset(watched), detailed, named
        self._hooks: list[Any] = []
        """On all modules, while they are followed."""
        self.start()

    def start(self) -> None:
        """Have the allocator write its history."""
        internals.start_history(with_lines=False)
        self.zero = self.now()

    def begin_phase(self) -> int:
        """Let the counters of peaks begin anew; returns the moment."""
        return internals.reset_peaks(self.device) - self.zero

    def read_peaks(self, interval: Interval) -> None:
        """Read the counters of peaks at a phase's end."""
        moment, peaks = internals.peaks(self.device)
        interval.requested, interval.allocated = peaks["requested"], peaks["allocated"]
        interval.reserved = peaks["reserved"]
        interval.end = moment - self.zero

    @contextlib.contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Everything inside belongs to this phase of this step."""
        self._follow(phase, step)
        interval = Interval(phase=phase, step=step, begin=self.begin_phase())
        self.intervals.append(interval)
        self.marks.append((interval.begin, ""))
        yield
        self._read(interval)

    def _read(self, interval: Interval) -> None:
        """A phase has ended: read its peaks, and name what it leaves behind."""
        self.read_peaks(interval)
        if self.wrapped and self.KIND == "cuda":
            interval.given = nccl_traffic.so_far()
        phase = interval.phase
        if phase is Phase.LOAD and self.model is not None:
            # A loop's library has taken model and optimizer over.
            self.meet(self.model, self.optimizer)
        if phase in (Phase.LOAD, Phase.PREPARE) and self.wrapped:
            # What a wrapper makes before the model's own code begins are its buckets.
            self.guess(Component.COMMUNICATION, [interval.begin])
        if phase is Phase.FORWARD:
            self.guess(Component.ACTIVATIONS, [interval.begin])
        if phase is Phase.BACKWARD and self.model is not None:
            self.name(Component.GRADIENTS, (p.grad for p in self.model.parameters()))
            if self.wrapped:
                # Of shards that are not reduced yet, a wrapper holds the whole gradients.
                self.guess(Component.GRADIENTS, [interval.begin])
        named_now = phase in (Phase.RESUME, Phase.BACKWARD, Phase.STEP)
        if named_now and self.model is not None and self.optimizer is not None:
            homes = {id(tensor): home for home, _, tensor, _ in named(self.model, self.paths)}
            self.name_state(self.optimizer, homes)

    def meet(self, model: torch.nn.Module | None, optimizer: Any) -> None:
        """Learn the model and the optimizer that the program has by now."""
        self.model, self.optimizer = model, optimizer
        if model is None:
            return
        self.name_models([("", model)], self.paths)
        if optimizer is not None and self.wrapped:
            groups = optimizer.param_groups
            self.name(Component.MASTER_WEIGHTS, (p for one in groups for p in one["params"]))

    def know(self, model: torch.nn.Module) -> None:
        """Learn the paths of modules before a wrapper puts its own names before them."""
        self.paths = {id(module): path for path, module in model.named_modules()}

    def _follow(self, phase: Phase, step: int) -> None:
        """Begin or end to follow modules and operators, as the step is a watched one."""
        wanted = step in self._watched and phase not in (Phase.LOAD, Phase.PREPARE, Phase.RESUME)
        if not wanted:
            self._unfollow()
        elif not self._hooks and self.model is not None:
            self._follow_modules(self.model)
            if self._detailed or (self._named and self._events_of_last_step() < _MANY):
                self.profile()

    def _follow_modules(self, model: torch.nn.Module) -> None:
        paths = self.paths or {id(module): path for path, module in model.named_modules()}
        at_work = AtWork(self)

        def enters(module: torch.nn.Module, args: Any) -> None:
            again = self.intervals[-1].phase is Phase.BACKWARD
            at_work.enters(paths.get(id(module)), args, again=again)

        def leaves(module: torch.nn.Module, args: Any, out: Any) -> None:
            at_work.leaves(out, keeps=self.intervals[-1].phase is Phase.BACKWARD)

        self._hooks = [
            modules.register_module_forward_pre_hook(enters),
            modules.register_module_forward_hook(leaves, always_call=True),
        ]

    def _unfollow(self) -> None:
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self.stop_profiling()

    def stop_profiling(self) -> None:
        """Operators are not followed any more."""
        if self.profiler is not None and not self.profiled[1]:
            self.profiler.__exit__(None, None, None)
            self.profiled = (self.profiled[0], self.now())

    def _events_of_last_step(self) -> int:
        """Births and deaths of the step before this one; 0: there is none."""
        before = [one for one in self.intervals if one.phase is not Phase.LOAD]
        if not before:
            return 0
        step = [one for one in before if one.step == before[-1].step]
        return step[-1].end - step[0].begin

    def profile(self) -> None:
        """Follow operators from here on."""
        if self.profiler is not None:
            return
        self.profiler = internals.memory_profiler(with_dtypes=self._detailed)
        self.profiled = (self.now(), 0)
        self.profiler.__enter__()

    def pause(self) -> None:
        """From here on the allocator's history is not kept, of which there would be too much."""
        begin = self.now()
        self.gap = Gap(begin=begin, entries=internals.stop_history()["device_traces"][self.device])

    def resume(self) -> None:
        """From here on it is kept again."""
        assert self.gap is not None
        self.gap.end, self.gap.living = self.now(), internals.resume_history(self.device)

    def history(self) -> list[dict[str, Any]]:
        """What the allocator wrote down."""
        snapshot = internals.stop_history()
        self.private = internals.private_pools(snapshot, self.device)
        entries: list[dict[str, Any]] = snapshot["device_traces"][self.device]
        return entries

    def end(self) -> None:
        """Nothing is followed any more; what cuBLAS holds shows when it is told to let go."""
        self._unfollow()
        begin = self.now()
        internals.free_cublas_workspaces()
        self.cublas.append((begin, self.now()))


class CpuRecorder(Recorder):
    """Follows a program on the CPU; a moment is a time until the run has ended."""

    KIND = "cpu"

    def start(self) -> None:
        """Have every block and every operator noted."""
        # A profiler of dtypes keeps weak references, and a model with those cannot be sharded.
        self.profiler = internals.memory_profiler(with_dtypes=self._detailed)
        self.profiler.__enter__()

    def now(self) -> int:
        """The present moment, in nanoseconds."""
        return time.time_ns()

    def begin_phase(self) -> int:
        """There are no counters to reset."""
        return self.now()

    def read_peaks(self, interval: Interval) -> None:
        """There are no counters to read; peaks follow from the history."""
        interval.end = self.now()

    def profile(self) -> None:
        """It runs from the start on."""

    def stop_profiling(self) -> None:
        """It runs to the end."""

    def end(self) -> None:
        """Nothing is followed any more."""
        self._unfollow()
        self.profiler.__exit__(None, None, None)

    def history(self) -> list[dict[str, Any]]:
        """Births and deaths as the allocator's history has them; moments become numbers of them."""
        entries: list[dict[str, Any]] = []
        times: list[int] = []
        alive: dict[int, int] = {}
        for moment, size, address, *_ in internals.cpu_allocations(self.profiler):
            if size > 0:
                alive[address] = size
            elif alive.pop(address, None) is None:
                # It is older than the run.
                continue
            action = "alloc" if size > 0 else "free_requested"
            entries.append({"action": action, "addr": address, "size": abs(size), "stream": 0})
            if size < 0:
                entries.append({"action": "free_completed", "addr": address})
            times.append(moment)
        self._settle(times)
        self._fill_peaks(entries)
        return entries

    def _settle(self, times: list[int]) -> None:
        """Let moments be numbers of events, as they are on a GPU."""

        def number(moment: int) -> int:
            return bisect_left(times, moment)

        for interval in self.intervals:
            interval.begin, interval.end = number(interval.begin), number(interval.end)
        self.marks = [(number(moment), path) for moment, path in self.marks]
        self.names = [(number(moment), what, which) for moment, what, which in self.names]
        self.owners = [(number(moment), owners) for moment, owners in self.owners]
        self.born_since = [
            (number(moment), what, number(since)) for moment, what, since in self.born_since
        ]
        self.profiled = 0, len(times) + 1

    def _fill_peaks(self, entries: list[dict[str, Any]]) -> None:
        level, levels = 0, [0]
        for entry in entries:
            if entry["action"] == "alloc":
                level += entry["size"]
            elif entry["action"] == "free_requested":
                level -= entry["size"]
            else:
                continue
            levels.append(level)
        for interval in self.intervals:
            interval.requested = max(levels[interval.begin : interval.end + 1])
