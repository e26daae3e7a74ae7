"""A simulated run: every storage's allocation and free, in order."""

from enum import StrEnum

import msgspec

from memcalc.records.model import Inventory


class Component(StrEnum):
    """Why a storage exists. Each live storage belongs to exactly one component."""

    WEIGHTS = "weights"
    QUANTISED_WEIGHTS = "quantised_weights"
    QUANTISATION_CONSTANTS = "quantisation_constants"
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
    UNSHARDED = "unsharded_weights"
    """Whole parameters, gathered from the shards of all GPUs for as long as they are used."""
    COMMUNICATION = "communication"
    """Buckets, flat buffers, and what collectives send and receive."""
    KV_CACHE = "kv_cache"
    """Keys and values of past tokens, and what state-space layers keep in their place."""
    WORKSPACES = "workspaces"
    """Scratch of kernels and libraries that no tensor of the program shows."""


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
    """One piece of device memory and why it was there."""

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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of PyTorch's own counters in one phase of one step, in bytes."""

    phase: Phase
    step: int
    requested: int
    allocated: int
    reserved: int


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """Something beside births and deaths that the allocator is told of, before event ``index``."""

    index: int
    what: str
    """``used_by``: another stream uses a storage; ``empty_cache``; ``keep_pool``: the stream is one
    within a private pool."""
    storage: int = -1
    stream: int = 0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a process sends in an optimizer step by one collective, in groups of one size."""

    collective: str
    """``all-reduce``, ``all-gather``, ``reduce-scatter``..."""
    ranks: int
    """Processes of the group."""
    calls: int
    bytes: int


SENT_SOURCE = "NVIDIA/nccl-tests, doc/PERFORMANCE.md"
"""Of how much a collective sends."""
EQUAL_LENGTHS = "batches of equal length"
"""How what is assumed of lengths begins."""
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
    asides: tuple[Aside, ...] = ()
    groups: tuple[int, ...] = ()
    """Of a script: processes in each group that sent something."""
    readings: tuple[Reading, ...] = ()
    """What PyTorch's counters said, phase by phase in order; empty: no allocator ran."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
