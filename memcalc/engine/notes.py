"""Keeps notes on a program's run: its phases, and the purpose of blocks of memory.

A moment is the number of allocations and frees so far, which the allocator counts itself. So notes
can be joined with the allocator's history afterwards, without a snapshot. Notes also say which
module is running: in forward, in a recomputed forward, in backward.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor

from memcalc.engine import nccl_traffic
from memcalc.engine import torch_internals as internals
from memcalc.engine.absences import Absence
from memcalc.engine.host_view import tensors_in
from memcalc.engine.patches import Around
from memcalc.records.levels import Levels
from memcalc.records.trace import Component, Phase, PhaseReading
from memcalc.workload import quantized
from memcalc.workload.wrapped_tensors import plain

Owner = tuple[str, str, str]
"""The owner of a block: the module's path, the tensor's name there, and its dtype."""


class Interval(msgspec.Struct, kw_only=True):
    """A phase of a step, between two moments."""

    phase: Phase
    step: int
    begin: int
    end: int = -1
    peaks: Levels = Levels(requested=0, allocated=0, active=0, reserved=0)
    """By PyTorch's own counters."""
    kept: bool = True
    """True if the allocator's history covers it."""
    given: nccl_traffic.Counts = msgspec.field(default_factory=dict)
    """Counts of collectives until its end, over several GPUs."""
    stream: int = 0
    """The CUDA stream that was current at its begin."""
    line: str = ""
    """The user's line that began it, for blocks made by C++ threads; empty if unknown."""


class Gap(msgspec.Struct, kw_only=True):
    """A gap in the allocator's history, with the blocks that lived after it."""

    begin: int
    entries: list[dict[str, Any]]
    """The history before the gap."""
    end: int = -1
    living: list[dict[str, Any]] = []
    """The blocks alive after the gap, as entries of a history."""

    def bridge(self, after: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the history before and after the gap, with all changes of the gap between."""
        before: dict[int, dict[str, Any]] = {}
        for entry in self.entries:
            if entry["action"] == "alloc":
                before[entry["addr"]] = entry
            elif entry["action"] == "free_requested":
                before.pop(entry["addr"], None)
        living = {entry["addr"]: entry for entry in self.living}
        changed = [a for a in before if a not in living or living[a]["size"] != before[a]["size"]]
        bridge: list[dict[str, Any]] = []
        for address in changed:
            bridge += [
                {"action": name, "addr": address} for name in ("free_requested", "free_completed")
            ]
        bridge += [entry for a, entry in living.items() if a not in before or a in changed]
        return [*self.entries, *bridge, {"action": "gap"}, *after]


class Label(IntEnum):
    """The kinds of labels of blocks; labels of equal moments apply in this order."""

    OWNERS = 0
    """The owners of blocks by address: their modules, or the variables that hold them."""
    NAMES = 1
    """The component of the blocks at some addresses; None marks arguments of a model's call."""
    BORN_SINCE = 2
    """The component of living blocks allocated since a moment, unless they have a name."""
    ARRIVED = 3
    """The address of a block to which the host copied data."""


class Notes:
    """The notes on one GPU during a program's run."""

    KIND = "cuda"
    counted: tuple[str, ...] = Levels.__struct_fields__
    """Rungs whose peaks are known."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.intervals: list[Interval] = []
        self.labels: list[tuple[int, Label, Any]] = []
        """Labels of blocks, each with its moment."""
        self.marks: list[tuple[int, str]] = []
        """Moments from which on a module runs, with its path."""
        self.profiled: tuple[int, int] = (0, 0)
        """The moments between which the profiler ran."""
        self.released: list[tuple[Component, int, int]] = []
        """Pairs of moments between which only blocks of this component were freed."""
        self.profiler: Any = None
        self.zero = 0
        """Allocations and frees before the history began."""
        self.gap: Gap | None = None
        self.private: dict[int, int] = {}
        """Bytes in private pools at the end, by stream."""
        self.absences: list[Absence] = []

    def now(self) -> int:
        """Return the present moment: the allocations and frees so far."""
        return internals.events_so_far(self.device) - self.zero

    def reading(self, one: Interval) -> PhaseReading:
        """Return the peaks of a phase."""
        peaks = {rung: getattr(one.peaks, rung) for rung in self.counted}
        return PhaseReading(step=one.step, phase=one.phase, **peaks)

    def readings(self) -> tuple[PhaseReading, ...]:
        """Return the peaks of each phase that has ended."""
        return tuple(self.reading(one) for one in self.intervals if one.end >= 0)

    def move(self, convert: Callable[[int], int]) -> None:
        """Replace all moments by converted ones."""
        for interval in self.intervals:
            interval.begin, interval.end = convert(interval.begin), convert(interval.end)
        self.marks = [(convert(moment), path) for moment, path in self.marks]
        self.labels = [
            (convert(m), kind, (what[0], convert(what[1])) if kind is Label.BORN_SINCE else what)
            for m, kind, what in self.labels
        ]
        self.profiled = convert(self.profiled[0]), convert(self.profiled[1])
        self.released = [(one, convert(begin), convert(end)) for one, begin, end in self.released]
        for absence in self.absences:
            absence.begin = convert(absence.begin)
            absence.end = None if absence.end is None else convert(absence.end)


class Notebook:
    """The notes on all GPUs that a program uses; a note on tensors is made for each GPU."""

    KIND = "cuda"
    notes: list[Notes]
    wrapped = False
    """True if the model is inside a wrapper over several GPUs, which also allocates memory."""

    def moments(self) -> list[int]:
        """Return the present moment of each GPU."""
        return [notes.now() for notes in self.notes]

    def addresses(self, tensor: Any) -> list[int]:
        """Return the device addresses of a tensor's storages; empty if it has none."""
        if not isinstance(tensor, torch.Tensor):
            return []
        try:
            return [
                part.untyped_storage().data_ptr()
                for part in plain(tensor)
                if part.device.type == self.KIND and not isinstance(part, FakeTensor)
            ]
        except (NotImplementedError, RuntimeError, ValueError):
            # torch.func wraps parameters, and a lazy parameter has no storage yet.
            return []

    def name(self, component: Component, tensors: Iterable[Any]) -> None:
        """Label the blocks of tensors with a component; the first label of a block counts."""
        self.name_at(component, [at for tensor in tensors for at in self.addresses(tensor)])

    def name_at(
        self, component: Component | None, addresses: list[int], moments: Sequence[int] = ()
    ) -> None:
        """Label the blocks at some addresses with a component.

        Args:
            component: their component; None marks arguments of a model's call.
            addresses: where the blocks begin.
            moments: when they lived, on each GPU; by default now.
        """
        for number, notes in enumerate(self.notes if addresses else ()):
            moment = moments[number] if moments else notes.now()
            notes.labels.append((moment, Label.NAMES, (component, addresses)))

    def send_away(self, device: int, address: int, size: int) -> None:
        """Note that memory at an address leaves the GPU, and its blocks stay allocated."""
        notes = self.notes[device]
        phase = len(notes.intervals) - 1
        notes.absences.append(Absence(at=address, bytes=size, begin=notes.now(), since=phase))

    def bring_back(self, device: int, address: int) -> None:
        """Note that memory at an address is on the GPU again, or freed."""
        notes = self.notes[device]
        for absence in notes.absences:
            if absence.at == address and absence.end is None:
                absence.end, absence.until = notes.now(), len(notes.intervals) - 1

    def own(self, owners: Mapping[int, Owner | str]) -> None:
        """Label the blocks at these addresses with their owners: modules or variables."""
        for notes in self.notes if owners else ():
            notes.labels.append((notes.now(), Label.OWNERS, owners))

    def guess(self, component: Component, since: Sequence[int]) -> None:
        """Label living blocks allocated since these moments, unless they have another label."""
        for number, notes in enumerate(self.notes):
            begin = since[number] if since else 0
            notes.labels.append((notes.now(), Label.BORN_SINCE, (component, begin)))

    def makes(self, component: Component) -> Around:
        """Return a wrapper that labels the memory that a function leaves allocated."""

        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.moments()
            made = original(*args, **kwargs)
            self.guess(component, before)
            return made

        return around

    def mark(self, module: str) -> None:
        """Record that a module runs from the present moment on."""
        for notes in self.notes:
            notes.marks.append((notes.now(), module))

    def name_models(
        self, models: Iterable[tuple[str, torch.nn.Module]], paths: Mapping[Any, str] = {}
    ) -> dict[int, str]:
        """Label weights and buffers, with the module of each.

        Libraries that replace parameters, such as higher, put tensors of other classes there.

        Args:
            models: models with the prefix of their modules' paths.
            paths: paths of modules, for models with an empty prefix.

        Returns:
            Paths of the tensors' modules, by the IDs of the tensors.
        """
        homes: dict[int, str] = {}
        owners: dict[int, Owner] = {}
        places: dict[Component, list[int]] = {Component.WEIGHTS: [], Component.BUFFERS: []}
        for prefix, model in models:
            found: dict[int, Owner] = {}
            for path, module in model.named_modules():
                home = f"{prefix}.{path}".rstrip(".") if prefix else paths.get(module, path)
                self._name_quantized_shard(module)
                for component, held in zip(
                    places, (module._parameters, module._buffers), strict=True
                ):
                    for name, tensor in held.items():
                        if tensor is None:
                            continue
                        homes[id(tensor)] = home
                        self._name_quantized_parts(tensor)
                        # DeepSpeed keeps this rank's part of a parameter in ``ds_tensor``.
                        at = self.addresses(getattr(tensor, "ds_tensor", tensor))
                        places[component] += at
                        for address in at:
                            found.setdefault(address, (home, name, dtype_name(tensor)))
            owners |= found
        for component, addresses in places.items():
            self.name_at(component, addresses)
        self.own(owners)
        return homes

    def _name_quantized_shard(self, module: torch.nn.Module) -> None:
        """Label 4-bit weights that a wrapper divided: their layer still has the constants."""
        state, weight = vars(module).get("quant_state"), module._parameters.get("weight")
        if state is not None and weight is not None:
            self.name(Component.QUANTIZATION_CONSTANTS, quantized.state_constants(state).values())
            self.name(Component.QUANTIZED_WEIGHTS, [weight])

    def _name_quantized_parts(self, tensor: torch.Tensor) -> None:
        """Label the packed values and constants of a quantized parameter."""
        if type(tensor) in (torch.nn.Parameter, torch.Tensor) or (
            not isinstance(tensor, torch.nn.Parameter) or quantized.original_shape(tensor) is None
        ):
            return
        self.name(Component.QUANTIZATION_CONSTANTS, quantized.constants(tensor).values())
        self.name(Component.QUANTIZED_WEIGHTS, [quantized.packed_values(tensor)])

    def name_state(self, optimizer: Any, homes: Mapping[int, str]) -> None:
        """Label an optimizer's state; ``homes``: module paths by the IDs of parameters."""
        owners: dict[int, Owner] = {}
        for parameter, state in state_by_parameter(optimizer).items():
            home = homes.get(id(parameter), "")
            for name, tensor in flat("", state, objects=True):
                for address in self.addresses(tensor):
                    owners[address] = home, name, dtype_name(tensor)
        self.name_at(Component.OPTIMIZER_STATE, list(owners))
        self.own(owners)


def held_by(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer, which need not be a ``torch.optim.Optimizer``."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list) and groups and isinstance(groups[0], dict):
        for group in groups:
            yield from (p for p in group.get("params", ()) if isinstance(p, torch.Tensor))
        return
    for value in getattr(optimizer, "__dict__", {}).values():
        yield from (one for _, one in flat("", value, depth=3) if one.requires_grad)


def driven_by(optimizer: Any) -> Any:
    """Return the optimizer that a wrapper drives over this rank's share, or itself.

    ZeroRedundancyOptimizer and DeepSpeed's engine are such wrappers.
    """
    own = getattr(optimizer, "__dict__", {})
    return own.get("optim") or own.get("basic_optimizer") or optimizer


def state_by_parameter(optimizer: Any) -> Mapping[Any, Any]:
    """Return an optimizer's state by parameter; under "" if it is no ``torch.optim.Optimizer``."""
    state = getattr(driven_by(optimizer), "state", None)
    if state is not None and hasattr(state, "items"):
        return state  # type: ignore[no-any-return]
    kept = {
        name: value
        for name, value in getattr(optimizer, "__dict__", {}).items()
        if not any(one.requires_grad for _, one in flat("", value, depth=3))
    }
    return {"": kept}


def flat(
    name: str, state: Any, depth: int = 6, *, objects: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested dicts and lists, with dotted names.

    ``depth``: the most levels of nesting; ``objects``: also search attributes of objects, such as
    GaLore's projection.
    """
    if isinstance(state, torch.Tensor):
        yield name, state
        return
    if objects and not isinstance(state, torch.nn.Module | type):
        state = getattr(state, "__dict__", state)
    if isinstance(state, dict | list | tuple) and depth:
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            inner = f"{name}.{key}" if name else str(key)
            yield from flat(inner, value, depth - 1, objects=objects)


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype, such as ``bfloat16``."""
    return str(tensor.dtype).removeprefix("torch.")


class RunningModules:
    """The modules whose forward runs, the innermost last."""

    def __init__(self, book: Notebook) -> None:
        self._book = book
        self._stack = [""]
        self._begun: list[int] = []
        """The moments at which the outermost began."""

    def enters(self, path: str | None, args: Any, *, again: bool) -> None:
        """Record that a module's forward begins; ``again``: checkpointing recomputes it."""
        if not self._stack[1:]:
            self._begun = self._book.moments()
            self._stack[0] = self._book.notes[0].marks[-1][1] if again else ""
        tag(args, self._stack[-1], self._book.mark)
        self._stack.append(self._stack[-1] if path is None else path)
        self._book.mark(self._stack[-1])

    def leaves(self, out: Any, *, keeps: bool) -> None:
        """Record that a module's forward ends; ``keeps``: label what the outermost saved."""
        if not self._stack[1:]:
            return  # It began before the recording.
        tag(out, self._stack.pop(), self._book.mark)
        self._book.mark(self._stack[-1])
        if not self._stack[1:]:
            self._stack[0] = ""
            if keeps:
                self._book.guess(Component.ACTIVATIONS, self._begun)


def tag(value: Any, path: str, mark: Callable[[str], None]) -> None:
    """Make backward mark a module as running when it reaches the nodes of these tensors.

    The first mark of a node counts: the innermost module returns a tensor first.
    """
    for tensor in tensors_in((value,)):
        node = tensor.grad_fn
        # The stubs of PyTorch take the dictionary for a method.
        known: Any = node.metadata if node is not None else None
        if node is not None and "memcalc" not in known:
            known["memcalc"] = path
            node.register_prehook(lambda _: mark(path))
