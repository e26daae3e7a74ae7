"""The memory that a serving engine reserves, and the capacity of its cache."""

import msgspec

TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Engines as people write them."""


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that keep equally many bytes of a token."""

    layers: int
    bytes: int
    """That one layer keeps of one token."""
    window: int | None = None
    """Tokens that its attention looks back on; ``None``: all of them."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of a cache."""

    bytes: int
    blocks: int
    tokens: int
    """As the engine says it in its log."""
    sequences: int
    """Of the length that was asked for, that it holds at once."""
    limit: int
    """Sequences that the engine runs at once, whatever the cache holds."""
    longest: int
    """Tokens of the longest sequence that fits alone, or that the model takes."""

    @property
    def running(self) -> int:
        """The sequences that run at once."""
        return min(self.sequences, self.limit)


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is taken from the share before the cache is; bytes, within limits."""

    name: str
    low: int
    high: int
    source: str


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that an engine reserves, and the capacity of its cache, in bytes.

    A block (SGLang: a page) holds a fixed number of tokens of every layer of a group.
    """

    engine: str
    version: str
    """Of the engine that was started, or whose source the rules were read in."""
    ran: bool = False
    """The engine itself started and said these figures; else its rules were applied."""
    share: float
    """Of the GPU, that weights and cache may take."""
    setting: str
    """What the engine calls that share."""
    memory: int
    """Of the GPU, that the share is of."""
    budget: int
    """The share in bytes."""
    taken: tuple[Taken, ...]
    """Of the budget, before the cache."""
    gpus: int = 1
    """GPUs that a copy of the model is divided over; figures are for one of them."""
    kinds: tuple[Layers, ...]
    block: int
    """Tokens of a block."""
    block_bytes: int
    length: int
    """Tokens of a sequence that was asked for: prompt and what is generated."""
    batched_tokens: int
    """Tokens of the largest pass that the engine makes."""
    activations: int
    """The most that such a pass holds beside weights and cache."""
    least: Capacity
    """With the most that may be taken before."""
    most: Capacity
