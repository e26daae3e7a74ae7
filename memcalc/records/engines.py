"""The figures of its memory that a serving engine writes."""

import msgspec


class WorkerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of an engine, in bytes; ``None`` where this release of the engine does not say it."""

    rank: int = 0
    weights: int | None = None
    parameters: int | None = None
    """Elements of the model's tensors on this GPU; packed ones count as they are stored."""
    tensors: int | None = None
    consumed: int | None = None
    """Taken for good before the KV cache: weights, and the engine's own memory."""
    activations: int | None = None
    """The most that the profiled pass adds, without CUDA graphs."""
    graphs: int | None = None
    """The engine's estimate of CUDA graphs, where it takes that off."""
    captured: int | None = None
    """Bytes that its CUDA graphs took in the end."""
    requested: int | None = None
    """The engine's share of the GPU."""
    available: int | None = None
    """Left for the KV cache."""


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that an engine chose for all its GPUs; ``None`` as in ``WorkerFigures``."""

    version: str
    architecture: str = ""
    quantization: str | None = None
    share: float | None = None
    world: int = 1
    """GPUs that hold one copy of the model."""
    replicas: int = 1
    """Copies of the model, each with a KV cache of its own."""
    blocks: int | None = None
    block: int | None = None
    """Tokens of a block."""
    cache: int | None = None
    """Bytes of all blocks on one GPU."""
    tokens: int | None = None
    longest: int | None = None
    """Tokens of the longest sequence that it takes."""
    concurrency: float | None = None
    """Sequences of the longest length that the KV cache holds at once."""
    length: int | None = None
    """A length that was asked for."""
    concurrency_at_length: float | None = None
    """Sequences of that length that the KV cache holds at once."""
    sequences: int | None = None
    """Sequences that it runs at once, whatever the cache holds."""
    batched_tokens: int | None = None
    bundled: tuple[str, ...] = ()
    """Models whose config is the one that memcalc ships, for the hub does not give it."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why an engine did not start."""

    kind: str
    """Class of the exception."""
    text: str


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that an engine's processes wrote."""

    engine: EngineFigures | None = None
    """``None``: it ended before."""
    workers: tuple[WorkerFigures, ...] = ()
    refused: Refused | None = None
