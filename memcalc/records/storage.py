"""A storage of a simulated run, and its component."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Component(StrEnum):
    """Why a storage exists. Each live storage belongs to exactly one component."""

    WEIGHTS = "weights"
    QUANTISED_WEIGHTS = "quantised_weights"
    QUANTISATION_CONSTANTS = "quantisation_constants"
    """What turns quantized weights back: the largest value of each block, tables of codes."""
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
