"""Records phases and module names while a program trains.

A moment is the number of births and deaths of blocks so far, which the allocator counts itself. So
what is noted here can be laid beside the allocator's history afterwards, without a snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from memcalc.engine import nccl_traffic
from memcalc.engine import torch_internals as internals
from memcalc.records.trace import Component, Phase
from memcalc.workload.wrapped_tensors import plain

_MANY = 25_000
"""Births and deaths of a step whose operators are not worth the time of PyTorch's profiler, which
takes a second for as many. Scratch of kernels then counts as temporary."""
Owner = tuple[str, str, str]
"""Of a block: the module it belongs to, its name there, and its dtype."""


class Interval(msgspec.Struct, kw_only=True):
    """One phase of one step, between two moments; peaks in bytes, by PyTorch's own counters."""

    phase: Phase
    step: int
    begin: int
    end: int = -1
    requested: int = 0
    allocated: int = 0
    reserved: int = 0
    counted: int = 0
    """Where the program resets the counters of peaks: they count from this moment on."""
    kept: bool = True
    """The allocator's history of it was kept."""
    given: nccl_traffic.Counts = msgspec.field(default_factory=dict)
    """To collectives until its end, where there are several GPUs."""
    line: str = ""
    """The user's line that began it, for blocks that C++ threads make; empty: unknown."""


class Gap(msgspec.Struct, kw_only=True):
    """Moments between which no history was kept, and what was alive after them."""

    begin: int
    entries: list[dict[str, Any]]
    """The history before."""
    end: int = -1
    living: list[dict[str, Any]] = []
    """Blocks as entries of a history that was kept."""


class Notes:
    """What was noted of one GPU while a program ran.

    Args:
        device: number of the GPU whose allocator is followed.
    """

    KIND = "cuda"

    def __init__(self, device: int) -> None:
        self.device = device
        self.intervals: list[Interval] = []
        self.names: list[tuple[int, Component | None, list[int]]] = []
        """At this moment, blocks at these addresses are of this component; ``None``: they are
        handed to a model from outside."""
        self.born_since: list[tuple[int, Component, int]] = []
        """At this moment, living blocks that were born after another one are of this component."""
        self.owners: list[tuple[int, Mapping[int, Owner | str]]] = []
        """At this moment, blocks at these addresses are of these modules, or held by these
        variables."""
        self.marks: list[tuple[int, str]] = []
        """From this moment on, this module is at work."""
        self.arrived: list[tuple[int, int]] = []
        """At this moment, something was copied from the host to this address."""
        self.profiled: tuple[int, int] = (0, 0)
        """Between which moments the profiler ran."""
        self.cublas: list[tuple[int, int]] = []
        """Between each two of these moments nothing but workspaces of cuBLAS died."""
        self.profiler: Any = None
        self.wrapped = False
        """The model is inside a wrapper over several GPUs, which allocates by itself."""
        self.zero = 0
        """Births and deaths before the history began."""
        self.gap: Gap | None = None
        self.private: dict[int, int] = {}
        """Bytes in private pools at the end, by the stream they are for."""

    def now(self) -> int:
        """The present moment."""
        return internals.events_so_far(self.device) - self.zero


class Recorder(Notes):
    """Follows a program phase by phase, as a ``Watch`` of its loop.

    Args:
        device: number of the GPU whose allocator is followed.
        watched: which steps are followed module by module and, with PyTorch's profiler, operator
            by operator.
        detailed: do so whatever time it takes, and learn the dtype of every block.
    """

    def __init__(
        self,
        *,
        device: int = 0,
        watched: Iterable[int] = (),
        detailed: bool = False,
    ) -> None:
        super().__init__(device)
        self.model: torch.nn.Module | None = None
        self.optimizer: Any = None
        self.kept_on_host = 0
        """Bytes of a cache in host memory, when the last pass ended."""
        self.paths: dict[int, str] = {}
        """Of modules, by their ids, where a wrapper changes them."""
        self._watched, self._detailed = frozenset(watched), detailed
        self._modules: _Modules | None = None
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
        begin = self.begin_phase()
        interval = Interval(phase=phase, step=step, begin=begin)
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
            self.born_since.append((self.now(), Component.COMMUNICATION, interval.begin))
        if phase is Phase.FORWARD:
            self.born_since.append((self.now(), Component.ACTIVATIONS, interval.begin))
        if phase is Phase.BACKWARD and self.model is not None:
            self.name(Component.GRADIENTS, (p.grad for p in self.model.parameters()))
            if self.wrapped:
                # Of shards that are not reduced yet, a wrapper holds the whole gradients.
                self.born_since.append((self.now(), Component.GRADIENTS, interval.begin))
        if phase in (Phase.RESUME, Phase.BACKWARD, Phase.STEP):
            self._name_states()

    def addresses(self, tensor: Any) -> list[int]:
        """Where on the device the storages behind a tensor begin."""
        return addresses(tensor, self.KIND)

    def name(self, component: Component, tensors: Iterable[Any]) -> None:
        """Say what these tensors are for; the first thing said of a block stands."""
        found = [address for tensor in tensors for address in self.addresses(tensor)]
        if found:
            self.names.append((self.now(), component, found))

    def meet(self, model: torch.nn.Module | None, optimizer: Any) -> None:
        """Learn the model and the optimizer that the program has by now."""
        self.model, self.optimizer = model, optimizer
        if model is None:
            return
        tensors = list(self._named(model))
        # Of a parameter that DeepSpeed divides, ``ds_tensor`` is what this rank keeps.
        kept = (getattr(tensor, "ds_tensor", tensor) for *_, tensor in tensors)
        weights: list[Any] = []
        buffers: list[Any] = []
        for (*_, tensor), shard in zip(tensors, kept, strict=True):
            (weights if isinstance(tensor, torch.nn.Parameter) else buffers).append(shard)
        self.name(Component.WEIGHTS, weights)
        self.name(Component.BUFFERS, buffers)
        if optimizer is not None and self.wrapped:
            groups = optimizer.param_groups
            self.name(Component.MASTER_WEIGHTS, (p for one in groups for p in one["params"]))
        owners: dict[int, Owner] = {}
        for home, name, tensor in tensors:
            dtype = str(tensor.dtype).removeprefix("torch.")
            for address in self.addresses(getattr(tensor, "ds_tensor", tensor)):
                owners.setdefault(address, (home, name, dtype))
        self.owners.append((self.now(), owners))

    def know(self, model: torch.nn.Module) -> None:
        """Learn the paths of modules before a wrapper puts its own names before them."""
        self.paths = {id(module): path for path, module in model.named_modules()}

    def _named(self, model: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Parameters and buffers: the path of their module, their name there, and themselves."""
        for path, module in model.named_modules():
            home = self.paths.get(id(module), path) if self.paths else path
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        yield home, name, tensor

    def _name_states(self) -> None:
        """What the optimizer keeps, and for which parameter."""
        if self.model is None or self.optimizer is None:
            return
        homes: dict[Any, str] = {tensor: home for home, _, tensor in self._named(self.model)}
        owners: dict[int, Owner] = {}
        # ZeroRedundancyOptimizer holds another that has this rank's share.
        for parameter, state in getattr(self.optimizer, "optim", self.optimizer).state.items():
            home = homes.get(parameter, "") if isinstance(parameter, torch.Tensor) else ""
            for name, tensor in _flat(state):
                for address in self.addresses(tensor):
                    owners[address] = (home, name, str(tensor.dtype).removeprefix("torch."))
        if owners:
            self.names.append((self.now(), Component.OPTIMIZER_STATE, list(owners)))
            self.owners.append((self.now(), owners))

    def _follow(self, phase: Phase, step: int) -> None:
        """Begin or end to follow modules and operators, as the step is a watched one."""
        wanted = step in self._watched and phase not in (Phase.LOAD, Phase.PREPARE, Phase.RESUME)
        if wanted and self._modules is None and self.model is not None:
            self._modules = _Modules(self, self.model)
            if self._detailed or self._events_of_last_step() < _MANY:
                self.profile()
        elif not wanted:
            self._unfollow()

    def _unfollow(self) -> None:
        if self._modules is not None:
            self._modules.close()
            self._modules = None
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


class _Modules:
    """Says which module is at work: in forward, in a forward that is made again, in backward."""

    def __init__(self, recorder: Recorder, model: torch.nn.Module) -> None:
        self._recorder = recorder
        known = recorder.paths
        self._paths = known or {id(module): path for path, module in model.named_modules()}
        self._stack = [""]
        self._begun = 0
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        """Follow no more."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        tag(args, self._stack[-1], self._mark)
        moment, path = self._recorder.now(), self._paths.get(id(module), self._stack[-1])
        if len(self._stack) == 1:
            self._begun = moment
            if self._recorder.intervals[-1].phase is Phase.BACKWARD:
                # Checkpointing runs this forward again inside the backward of a module.
                self._stack[0] = self._recorder.marks[-1][1]
        self._stack.append(path)
        self._recorder.marks.append((moment, path))

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        if len(self._stack) == 1:
            return  # It began before anybody followed.
        tag(result, self._stack.pop(), self._mark)
        moment = self._recorder.now()
        self._recorder.marks.append((moment, self._stack[-1]))
        again = self._recorder.intervals[-1].phase is Phase.BACKWARD
        if len(self._stack) == 1 and again:
            # Checkpointing ran this forward again: what is left of it was saved for backward.
            self._recorder.born_since.append((moment, Component.ACTIVATIONS, self._begun))
            self._stack[0] = ""

    def _mark(self, path: str) -> None:
        self._recorder.marks.append((self._recorder.now(), path))


def tag(value: Any, path: str, mark: Callable[[str], None]) -> None:
    """When backward reaches what made these tensors, say that this module is at work.

    Who says so first is right: the innermost module returns a tensor first.
    """
    if isinstance(value, torch.Tensor):
        node = value.grad_fn
        # The stubs of PyTorch take the dictionary for a method.
        known: Any = node.metadata if node is not None else None
        if node is not None and "memcalc" not in known:
            known["memcalc"] = path
            node.register_prehook(lambda _: mark(path))
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            tag(one, path, mark)


def addresses(tensor: Any, device: str = "cuda") -> list[int]:
    """Where on the device the storages behind a tensor begin."""
    if not isinstance(tensor, torch.Tensor):
        return []
    return [
        part.untyped_storage().data_ptr() for part in plain(tensor) if part.device.type == device
    ]


def _flat(state: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in an optimizer's state of one parameter, by name."""
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _flat(value, str(key))
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _flat(value, name)
