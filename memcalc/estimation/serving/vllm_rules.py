"""vLLM: weights, a profiled pass and CUDA graphs out of a share of the GPU; the rest is cache.

Read in vLLM 0.33.0 (wheel): ``vllm/config/cache.py`` (share, block),
``vllm/engine/arg_utils.py`` ``get_batch_defaults`` (``vllm serve``), ``vllm/v1/worker/utils.py``
``request_memory``, ``vllm/v1/worker/gpu_worker.py`` ``determine_available_memory``,
``vllm/v1/worker/gpu/sample`` (sampler), ``vllm/v1/core/kv_cache_planning.py`` (groups, blocks),
``vllm/v1/core/kv_cache_utils.py``
``get_max_concurrency_for_kv_cache_config``, ``vllm/v1/kv_cache_interface.py`` (what a sequence
takes), ``vllm/config/vllm.py`` ``max_in_flight_tokens``.
"""

from typing import Any

import msgspec

from memcalc.catalog.gpus import Gpu
from memcalc.errors import EstimateError
from memcalc.estimation.serving.probe import CACHE_DTYPE, COUNT, SHARE, SWITCH, Size
from memcalc.records.serving import Capacity, Layers, Taken
from memcalc.units import GIB

VERSION = "0.33.0"
SETTING = "gpu_memory_utilization"
CACHE_TYPE = "kv_cache_dtype"
LONGEST = "max_model_len"
ARGUMENTS = {
    SETTING: SHARE,
    "max_num_batched_tokens": COUNT,
    "max_num_seqs": COUNT,
    LONGEST: COUNT,
    "block_size": COUNT,
    "enforce_eager": SWITCH,
    CACHE_TYPE: CACHE_DTYPE,
}
_SHARE = 0.92
BLOCK = 16
"""Tokens of a block where the plan names no ``block_size``."""
_IN_FLIGHT = 2
"""Passes whose tokens may lie outside a window already: scheduling runs a pass ahead."""
_LARGE, _HUGE = 70 * GIB, 160 * GIB
_GRAPHS_LOW, GRAPHS_HIGH = 147 << 20, 1894 << 20
"""What logs say that graphs take: 0.14 GiB estimated with 19 and 11 graphs
(github.com/aivrar/vllm-windows-build/issues/4), 0.73 GiB with 51 and 35
(github.com/vllm-project/vllm/pull/39559), 0.51 to 1.85 GiB taken by vLLM 0.19.0 for 28 models on
an H100 (github.com/llm-d-incubation/llm-d-planner, accuracy/accuracy_report.md). Estimates of
single models have been far larger (github.com/vllm-project/vllm/issues/53013)."""


def largest(given: dict[str, Any], gpu: Gpu, longest: int | None) -> Size:
    """Return the size of the pass that vLLM profiles at its start."""
    # ``max_num_batched_tokens`` and ``max_num_seqs`` of ``vllm serve``.
    tokens, sequences = 2048, 256
    if gpu.memory >= _HUGE:
        tokens, sequences = 16384, 1024
    elif gpu.memory >= _LARGE and "a100" not in gpu.name.lower():
        tokens, sequences = 8192, 1024
    most = given.get("max_num_seqs", sequences)
    if longest is not None:
        tokens = min(tokens, most * longest)
    tokens = given.get("max_num_batched_tokens", tokens)
    sequences = min(most, tokens)
    return Size(sequences=sequences, tokens=tokens, limit=sequences)


def share(given: dict[str, Any], gpu: Gpu) -> float:
    """Return the share of the GPU's memory that vLLM may take."""
    del gpu
    return float(given.get(SETTING, _SHARE))


def graphs(given: dict[str, Any]) -> Taken | None:
    """Return the memory that vLLM reserves for CUDA graphs, or None with ``enforce_eager``."""
    if given.get("enforce_eager"):
        return None
    return Taken(
        name="CUDA graphs", low=_GRAPHS_LOW, high=GRAPHS_HIGH, source="published logs of vLLM"
    )


_SAMPLING = 3
"""Copies of the logits in fp32 that sampling holds at once: the copy itself, what top-k and top-p
leave of it, and probabilities (``vllm/v1/worker/gpu/sample/sampler.py``, FlashInfer's sampler)."""
_COUNTS, _BITS = 4, 32


def sampler_state(sequences: int, vocabulary: int) -> Taken:
    """Return the memory of the sampler's penalties: a count and a bit per token.

    Source: ``vllm/v1/worker/gpu/sample/penalties.py``.
    """
    size = sequences * _COUNTS * (vocabulary + -(-vocabulary // _BITS))
    return Taken(name="sampler's state", low=size, high=size, source="vLLM's penalties.py")


def sampling(size: Size, vocabulary: int, width: int, element: int) -> int:
    """Return the peak bytes of sampling: logits, their fp32 copies, hidden states.

    The output of each sequence's last token is a copy too.
    """
    logits = size.sequences * vocabulary * (element + 4 * _SAMPLING)
    return logits + (size.tokens + size.sequences) * width * element


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """Layers in groups of one size; a block holds the same tokens of a group's layers."""

    size: int
    each: tuple[tuple[Layers, int], ...]
    """A kind of layers, and how many groups they make."""
    block: int
    in_flight: int
    """Tokens of passes that are under way."""

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block, all layers of a group."""
        return self.block * self.size * self.each[0][0].bytes

    def blocks(self, length: int) -> int:
        """Return the KV-cache blocks that a sequence of this length takes."""
        return sum(count * self._count_blocks(kind, length) for kind, count in self.each)

    def _count_blocks(self, kind: Layers, length: int) -> int:
        if kind.window is None:
            return -(-length // self.block)
        # One more: a window need not begin where a block does.
        return -(-min(kind.window - 1 + self.in_flight, length) // self.block) + 1


def groups(kinds: tuple[Layers, ...], block: int, batched_tokens: int) -> Groups:
    """Group layers by kind into groups of equal size, as vLLM's KV-cache manager does.

    Raises:
        EstimateError: layers keep different sizes of a token.
    """
    if len({kind.bytes for kind in kinds}) > 1:
        raise EstimateError(
            "layers of this model keep different sizes per token: how vLLM equalizes their blocks "
            "is not supported yet"
        )
    least, most = min(k.layers for k in kinds), max(k.layers for k in kinds)
    size = most if most < least * 1.5 else least
    each = tuple((kind, -(-kind.layers // size)) for kind in kinds)
    return Groups(size=size, each=each, block=block, in_flight=_IN_FLIGHT * batched_tokens)


def capacity(found: Groups, size: int, length: int, longest: int, most: int) -> Capacity:
    """Return how many tokens and sequences a KV cache of ``size`` bytes holds."""
    blocks = max(size, 0) // found.block_bytes
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if found.blocks(middle) <= blocks else (low, middle - 1)
    return Capacity(
        bytes=max(size, 0),
        blocks=blocks,
        tokens=int(blocks / found.blocks(longest) * longest),
        sequences=blocks // found.blocks(length),
        limit=most,
        longest=low,
    )
