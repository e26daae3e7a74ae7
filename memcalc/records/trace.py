"""A simulated run: every storage's allocation and free, in order; and walks through it."""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import accumulate

import msgspec

from memcalc.records.model import Inventory


def rename_component(name: str) -> str:
    """Return a component's present name from its name in files of schema 1."""
    return re.sub("^quantis(ed_weights|ation_constants)$", r"quantiz\1", name)


class Component(StrEnum):
    """Why a storage exists. Each live storage belongs to exactly one component."""

    WEIGHTS = "weights"
    QUANTIZED_WEIGHTS = "quantized_weights"
    QUANTIZATION_CONSTANTS = "quantization_constants"
    """Quantization scales: the largest value of each block, tables of codes."""
    MASTER_WEIGHTS = "master_weights"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    """Saved for backward."""
    HELD = "held"
    """Held by a script itself, after backward: lists of results, copies of weights."""
    TEMPORARIES = "temporaries"
    """Dies inside the phase that made it and is not needed by backward."""
    INPUTS = "inputs"
    BUFFERS = "buffers"
    AUTOCAST_COPIES = "autocast_copies"
    """Weights cast to 16 bits, which autocast keeps until its context ends."""
    UNSHARDED = "unsharded_weights"
    """Whole parameters, gathered from the shards of all GPUs for as long as they are used."""
    COMMUNICATION = "communication"
    """Buckets, flat buffers, and what collectives send and receive."""
    KV_CACHE = "kv_cache"
    """Keys and values of past tokens, and what state-space layers keep in their place."""
    WORKSPACES = "workspaces"
    """Scratch of kernels and libraries that no tensor of the program shows."""

    @classmethod
    def _missing_(cls, value: object) -> "Component | None":
        name = rename_component(str(value))
        return cls(name) if name != value else None


class Phase(StrEnum):
    """The parts of a training run, in the order they happen."""

    LOAD = "load"
    PREPARE = "prepare"
    """What is done to a quantized model before it trains: weights cast, adapters attached."""
    RESUME = "resume"
    """Loading the optimizer's state of a checkpoint, before the first forward."""
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    """Unscaling, clipping and the optimizer's update."""
    ZERO_GRAD = "zero_grad"
    EVAL = "eval"
    """Evaluation after the last step, with logits kept."""
    PREFILL = "prefill"
    """Of generation: the prompt's pass, and the choice of the first token."""
    DECODE = "decode"
    """Every further token, a pass each."""


ONCE = (Phase.PREPARE, Phase.RESUME)
"""Phases between loading and the first step."""
GENERATION = (Phase.PREFILL, Phase.DECODE)
"""Phases in which nothing is trained and every pass counts."""


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of device memory and what it was for."""

    bytes: int
    component: Component
    phase: Phase
    """The phase it was born in."""
    step: int
    module: str = ""
    op: str = ""
    dtype: str = ""
    """Of the first tensor that used it; empty for scratch, which is plain bytes."""
    stream: int = 0
    """Number of the stream it was made on; 0: the default one."""
    used_by: int | None = None
    """Another stream that still uses it when it dies (``Tensor.record_stream``)."""
    until: str = ""
    """What autograd was running when it died, such as ``MulBackward0``; empty: nothing."""
    line: str = ""
    """Of the user's code, as ``train.py:41``, that asked for it; empty: unknown."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """From event ``index`` on, this phase of this step runs."""

    index: int
    phase: Phase
    step: int


class PhaseReading(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of PyTorch's own counters in one phase of one step, in bytes.

    On the CPU there is no caching allocator: only the requested bytes are known.
    """

    step: int
    phase: Phase
    requested: int | None = None
    """``None``: a CPU run goes on, whose peaks are known when it has ended."""
    allocated: int | None = None
    active: int | None = None
    reserved: int | None = None


class AllocatorCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the allocator that neither allocates nor frees, before event ``index``."""

    index: int
    what: str
    """``used_by``: another stream uses a storage; ``passed``: that stream is done with it;
    ``empty_cache``; ``keep_pool``: the stream is one within a private pool."""
    storage: int = -1
    stream: int = 0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that a process sends in a step by one collective, in groups of one size."""

    collective: str
    """``all-reduce``, ``all-gather``, ``reduce-scatter``..."""
    ranks: int
    """Processes of the group."""
    calls: int
    bytes: int


SENT_SOURCE = "NVIDIA/nccl-tests, doc/PERFORMANCE.md"
"""Of how much a collective sends."""
FILLED = ", filled at "
"""Stands between a variable and the line that puts tensors into it."""
EMPTIED = ", emptied at "
"""Stands between that line and one of a loop around it that empties the variable."""
GRAPH = " with its graph"
"""Follows a variable that holds results of a graph, which keeps what backward needs."""
EQUAL_LENGTHS = "batches of equal length"
"""How what is assumed of lengths begins."""
EMULATED = "this GPU has no bf16 arithmetic"
"""Begins what is assumed of bf16 on a GPU before Ampere."""
UNCOMPUTED = "numbers that are not computed here"
"""Begins what is said of a script that branches by such numbers: it is always shown."""
NO_GRADIENT = "got no gradient"
"""Is said of weights that a training run did not reach."""
UNCOUNTED_FLOPS = "floating-point operations are not known"
"""How the assumption begins that says which operators PyTorch cannot count."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated run of some optimizer steps: every storage's birth and death, in order."""

    storages: tuple[Storage, ...]
    events: tuple[int, ...]
    """``n``: storage ``n`` is born; ``~n``: it dies."""
    marks: tuple[Mark, ...]
    inventory: Inventory
    steps: int
    seq: int | None = None
    flops: int | None = None
    """Floating-point operations of products, convolutions and attention in the last step."""
    sent: tuple[Sent, ...] = ()
    """Over several GPUs: what this process sends in the last step."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    whole: bool = False
    """A script ran as it is: what counts is the highest of all steps and of what lies around them,
    not only the last step."""
    asides: tuple[AllocatorCall, ...] = ()
    groups: tuple[int, ...] = ()
    """Of a script: processes in each group that sent something."""
    readings: tuple[PhaseReading, ...] = ()
    """What PyTorch's counters said, phase by phase in order; empty: no allocator ran."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)


def sections(marks: Sequence[Mark], count: int) -> Iterator[tuple[Mark, int, int]]:
    """Yield each phase mark with the range of its events: first, and one past the last."""
    ends = (*(mark.index for mark in marks[1:]), count)
    for mark, end in zip(marks, ends, strict=True):
        yield mark, mark.index, end


def changes(events: Sequence[int], sizes: Sequence[int]) -> Iterator[int]:
    """Yield the bytes that each event adds; negative for a free."""
    return (sizes[event] if event >= 0 else -sizes[~event] for event in events)


def walk(trace: Trace) -> Iterator[tuple[Mark, int, Storage]]:
    """Yield each event of a trace in order, with its phase mark and its storage."""
    for mark, begin, end in sections(trace.marks, len(trace.events)):
        for event in trace.events[begin:end]:
            yield mark, event, trace.storages[event if event >= 0 else ~event]


def counts(trace: Trace, phase: Phase, step: int) -> bool:
    """Return True if this phase and step count for the answer (the steady step, mostly).

    Every part of a script is. Of a plan the last step is, which stands for the others; resuming is;
    loading and preparing are where weights change on the way.
    """
    if trace.whole:
        return True
    if phase is Phase.LOAD:
        return any(mark.phase is Phase.PREPARE for mark in trace.marks)
    return step == (0 if phase in ONCE else trace.steps - 1)


def highest(trace: Trace) -> dict[Phase, int]:
    """Return the index of the event at which each phase of the steady step peaks.

    Bytes that are held when a phase begins count for it.
    """
    levels = [0, *accumulate(changes(trace.events, [storage.bytes for storage in trace.storages]))]
    found: dict[Phase, int] = {}
    for mark, begin, end in sections(trace.marks, len(trace.events)):
        if not counts(trace, mark.phase, mark.step):
            continue
        # Among equals one inside the phase, and only then the moment at which it begins.
        top = max((*range(begin + 1, end + 1), begin), key=levels.__getitem__)
        if mark.phase not in found or levels[top] > levels[found[mark.phase] + 1]:
            found[mark.phase] = top - 1
    return found


def alive(trace: Trace, event: int) -> list[int]:
    """Return the numbers of the storages alive after an event, in order of allocation."""
    living: dict[int, None] = {}
    for happened in trace.events[: event + 1]:
        if happened >= 0:
            living[happened] = None
        else:
            del living[~happened]
    return list(living)


def components(trace: Trace, event: int) -> dict[Component, int]:
    """Return the bytes alive after an event, by component."""
    held = dict.fromkeys(Component, 0)
    for number in alive(trace, event):
        storage = trace.storages[number]
        held[storage.component] += storage.bytes
    return held


def find_peak(trace: Trace, component: Component) -> int:
    """Return the most bytes that one component holds at any time."""
    level = most = 0
    for _, event, storage in walk(trace):
        if storage.component is component:
            level += storage.bytes if event >= 0 else -storage.bytes
            most = max(most, level)
    return most


def last_step(events: Sequence[int], marks: Sequence[Mark]) -> tuple[int, int]:
    """Return the first event of the last step, and the one after its end.

    The last zero_grad is as long as the one before it; later deaths belong to the exit.
    """
    final = max(mark.step for mark in marks)
    begin = next(m.index for m in marks if m.step == final and m.phase is Phase.FORWARD)
    clearing = [0] * (final + 1)
    for mark, start, end in sections(marks, len(events)):
        if mark.phase is Phase.EVAL:
            return begin, start
        if mark.phase is Phase.ZERO_GRAD:
            clearing[mark.step] += end - start
    surplus = clearing[-1] - clearing[-2] if final else 0
    return begin, len(events) - max(0, surplus)


def program_end(trace: Trace) -> int:
    """Return the number of events before the program ends and frees what is left.

    An evaluation ends with the last event of a storage made in it; a script ends by itself.
    """
    if trace.whole:
        return len(trace.events)
    own = [
        index for index, (_, _, storage) in enumerate(walk(trace)) if storage.phase is Phase.EVAL
    ]
    if own and any(mark.phase is Phase.EVAL for mark in trace.marks):
        return own[-1] + 1
    return last_step(trace.events, trace.marks)[1]
