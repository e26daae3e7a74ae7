"""Notes of a program: its phases, and the purpose of blocks of memory.

A moment is the number of births and deaths of blocks so far, which the allocator counts itself. So
what is noted here can be laid beside the allocator's history afterwards, without a snapshot. Which
module is at work is noted too: in forward, in a forward that is made again, in backward.
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
"""Of a block: the module it belongs to, its name there, and its dtype."""


class Interval(msgspec.Struct, kw_only=True):
    """One phase of one step, between two moments; peaks in bytes, by PyTorch's own counters."""

    phase: Phase
    step: int
    begin: int
    end: int = -1
    requested: int = 0
    allocated: int = 0
    active: int = 0
    reserved: int = 0
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

    def bridged(self, after: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a history with a gap, in which all that changed there changes at once."""
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


class Told(IntEnum):
    """Kinds of notes on blocks; in one moment, the first of these comes first."""

    OWNERS = 0
    """By their addresses, which modules they are of, or which variables hold them."""
    NAMES = 1
    """Component of the blocks at some addresses; ``None``: a model is given them from outside."""
    BORN_SINCE = 2
    """Component of living blocks that were born since a moment, unless they are named."""
    ARRIVED = 3
    """The address of a block to which something was copied from the host."""


class Notes:
    """Notes of one GPU while a program ran."""

    KIND = "cuda"
    counted: tuple[str, ...] = Levels.__struct_fields__
    """Rungs whose peaks are known."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.intervals: list[Interval] = []
        self.told: list[tuple[int, Told, Any]] = []
        """What was said of blocks at this moment."""
        self.marks: list[tuple[int, str]] = []
        """From this moment on, this module is at work."""
        self.profiled: tuple[int, int] = (0, 0)
        """Between which moments the profiler ran."""
        self.released: list[tuple[Component, int, int]] = []
        """Between each two of these moments nothing but blocks of this component died."""
        self.profiler: Any = None
        self.zero = 0
        """Births and deaths before the history began."""
        self.gap: Gap | None = None
        self.private: dict[int, int] = {}
        """Bytes in private pools at the end, by the stream they are for."""
        self.absences: list[Absence] = []

    def now(self) -> int:
        """The present moment."""
        return internals.events_so_far(self.device) - self.zero

    def reading(self, one: Interval) -> PhaseReading:
        """Return the peaks of a phase."""
        peaks = {rung: getattr(one, rung) for rung in self.counted}
        return PhaseReading(step=one.step, phase=one.phase, **peaks)

    def readings(self) -> tuple[PhaseReading, ...]:
        """Return the peaks of each phase that has ended."""
        return tuple(self.reading(one) for one in self.intervals if one.end >= 0)

    def move(self, moved: Callable[[int], int]) -> None:
        """Count moments otherwise."""
        for interval in self.intervals:
            interval.begin, interval.end = moved(interval.begin), moved(interval.end)
        self.marks = [(moved(moment), path) for moment, path in self.marks]
        self.told = [
            (moved(m), kind, (what[0], moved(what[1])) if kind is Told.BORN_SINCE else what)
            for m, kind, what in self.told
        ]
        self.profiled = moved(self.profiled[0]), moved(self.profiled[1])
        self.released = [(one, moved(begin), moved(end)) for one, begin, end in self.released]
        for absence in self.absences:
            absence.begin = moved(absence.begin)
            absence.end = None if absence.end is None else moved(absence.end)


class Notebook:
    """Notes of all GPUs that a program uses; a note on tensors holds on each GPU."""

    KIND = "cuda"
    notes: list[Notes]
    wrapped = False
    """The program's model is inside a wrapper over several GPUs, which allocates by itself."""

    def moments(self) -> list[int]:
        """Return the present moment of each GPU."""
        return [notes.now() for notes in self.notes]

    def addresses(self, tensor: Any) -> list[int]:
        """Return where on the device the storages behind a tensor begin; none if it has none."""
        if not isinstance(tensor, torch.Tensor):
            return []
        try:
            return [
                part.untyped_storage().data_ptr()
                for part in plain(tensor)
                if part.device.type == self.KIND and not isinstance(part, FakeTensor)
            ]
        except (NotImplementedError, RuntimeError, ValueError):
            # Inside torch.func parameters are wrapped; a lazy one is nowhere yet.
            return []

    def name(self, component: Component, tensors: Iterable[Any]) -> None:
        """Say what these tensors are for; the first thing said of a block stands."""
        self.name_at(component, [at for tensor in tensors for at in self.addresses(tensor)])

    def name_at(
        self, component: Component | None, addresses: list[int], moments: Sequence[int] = ()
    ) -> None:
        """Say what the blocks at some addresses are for.

        Args:
            component: their purpose; None: a model is given them.
            addresses: where they lie.
            moments: when they lay there, on each GPU; empty: now.
        """
        for number, notes in enumerate(self.notes if addresses else ()):
            moment = moments[number] if moments else notes.now()
            notes.told.append((moment, Told.NAMES, (component, addresses)))

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
        """Say which modules own the blocks at these addresses, or which variables hold them."""
        for notes in self.notes if owners else ():
            notes.told.append((notes.now(), Told.OWNERS, owners))

    def guess(self, component: Component, since: Sequence[int]) -> None:
        """Label living blocks that were born since these moments, unless they are named."""
        for number, notes in enumerate(self.notes):
            begin = since[number] if since else 0
            notes.told.append((notes.now(), Told.BORN_SINCE, (component, begin)))

    def makes(self, component: Component) -> Around:
        """Wrap a function: memory that it leaves allocated is labelled with this component."""

        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.moments()
            made = original(*args, **kwargs)
            self.guess(component, before)
            return made

        return around

    def mark(self, module: str) -> None:
        """Note that this module is at work from here on."""
        for notes in self.notes:
            notes.marks.append((notes.now(), module))

    def name_models(
        self, models: Iterable[tuple[str, torch.nn.Module]], paths: Mapping[Any, str] = {}
    ) -> dict[int, str]:
        """Name weights and buffers, and say of which module each is.

        Libraries that replace parameters, such as higher, put tensors of other classes there.

        Args:
            models: each with what its modules' paths begin with.
            paths: of modules, where a model's paths begin with nothing.

        Returns:
            Paths of the tensors' modules, by the ids of the tensors.
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
                        self._name_quantized(tensor)
                        # Of a parameter that DeepSpeed divides, this rank keeps ``ds_tensor``.
                        at = self.addresses(getattr(tensor, "ds_tensor", tensor))
                        places[component] += at
                        for address in at:
                            found.setdefault(address, (home, name, dtype_of(tensor)))
            owners |= found
        for component, addresses in places.items():
            self.name_at(component, addresses)
        self.own(owners)
        return homes

    def _name_quantized_shard(self, module: torch.nn.Module) -> None:
        """Name weights in 4 bit that a wrapper divided: their layer still knows the constants."""
        state, weight = vars(module).get("quant_state"), module._parameters.get("weight")
        if state is not None and weight is not None:
            self.name(Component.QUANTIZATION_CONSTANTS, quantized.state_constants(state).values())
            self.name(Component.QUANTIZED_WEIGHTS, [weight])

    def _name_quantized(self, tensor: torch.Tensor) -> None:
        if type(tensor) in (torch.nn.Parameter, torch.Tensor) or (
            not isinstance(tensor, torch.nn.Parameter) or quantized.original_shape(tensor) is None
        ):
            return
        self.name(Component.QUANTIZATION_CONSTANTS, quantized.constants(tensor).values())
        self.name(Component.QUANTIZED_WEIGHTS, [quantized.packed_values(tensor)])

    def name_state(self, optimizer: Any, homes: Mapping[int, str]) -> None:
        """Name what an optimizer keeps; ``homes``: modules of parameters, by the ids of these."""
        owners: dict[int, Owner] = {}
        for parameter, state in state_of(optimizer).items():
            home = homes.get(id(parameter), "")
            for name, tensor in flat("", state, objects=True):
                for address in self.addresses(tensor):
                    owners[address] = home, name, dtype_of(tensor)
        self.name_at(Component.OPTIMIZER_STATE, list(owners))
        self.own(owners)


def held_by(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer, also of one that is no ``torch.optim.Optimizer``."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list) and groups and isinstance(groups[0], dict):
        for group in groups:
            yield from (p for p in group.get("params", ()) if isinstance(p, torch.Tensor))
        return
    for value in getattr(optimizer, "__dict__", {}).values():
        yield from (one for _, one in flat("", value, depth=3) if one.requires_grad)


def state_of(optimizer: Any) -> Mapping[Any, Any]:
    """Return an optimizer's state by parameter; all in one, if it is none of PyTorch's."""
    # ZeroRedundancyOptimizer holds another that has this rank's share.
    state = getattr(getattr(optimizer, "optim", optimizer), "state", None)
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
    """Yield the tensors in a state, and in lists and dicts of a user's own optimizer.

    ``depth``: how many times what holds tensors may itself be held; ``objects``: look into objects
    as well, such as the projection that GaLore keeps.
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


def dtype_of(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype as records spell it: ``bfloat16``."""
    return str(tensor.dtype).removeprefix("torch.")


class AtWork:
    """The modules whose forward runs, the innermost last."""

    def __init__(self, book: Notebook) -> None:
        self._book = book
        self._stack = [""]
        self._begun: list[int] = []
        """When the outermost began."""

    def enters(self, path: str | None, args: Any, *, again: bool) -> None:
        """A module begins, also in backward (``again``), as checkpointing has it."""
        if not self._stack[1:]:
            self._begun = self._book.moments()
            self._stack[0] = self._book.notes[0].marks[-1][1] if again else ""
        tag(args, self._stack[-1], self._book.mark)
        self._stack.append(self._stack[-1] if path is None else path)
        self._book.mark(self._stack[-1])

    def leaves(self, out: Any, *, keeps: bool) -> None:
        """A module ends; ``keeps``: what the outermost leaves behind is for backward."""
        if not self._stack[1:]:
            return  # It began before anybody followed.
        tag(out, self._stack.pop(), self._book.mark)
        self._book.mark(self._stack[-1])
        if not self._stack[1:]:
            self._stack[0] = ""
            if keeps:
                self._book.guess(Component.ACTIVATIONS, self._begun)


def tag(value: Any, path: str, mark: Callable[[str], None]) -> None:
    """Let backward note that this module is at work when it reaches what made these tensors.

    Who says so first is right: the innermost module returns a tensor first.
    """
    for tensor in tensors_in((value,)):
        node = tensor.grad_fn
        # The stubs of PyTorch take the dictionary for a method.
        known: Any = node.metadata if node is not None else None
        if node is not None and "memcalc" not in known:
            known["memcalc"] = path
            node.register_prehook(lambda _: mark(path))
