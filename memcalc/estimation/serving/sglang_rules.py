"""SGLang: a share of the GPU is for weights and cache; what it leaves is for passes and graphs.

Nothing is profiled: the share is chosen by rules of thumb of the engine. Read in SGLang 0.5.23
(wheel): ``sglang/srt/arg_groups/memory_hook.py`` ``handle_gpu_memory_settings`` and
``reserve_for_graph_mb``, ``cuda_graph_hook.py`` ``generate_prefill_cuda_graph_batch_sizes``,
``sglang/srt/mem_cache/kv_cache_configurator.py`` ``_profile_available_bytes`` and
``resolve_max_num_reqs``, ``sglang/srt/model_executor/pool_configurator.py``,
``sglang/srt/arg_groups/fields/schedule.py`` (``swa_full_tokens_ratio``).
"""

from typing import Any

import msgspec

from memcalc.catalog.gpus import Gpu
from memcalc.errors import EstimateError
from memcalc.estimation.serving.probe import CACHE_DTYPE, COUNT, SHARE, SWITCH, Size
from memcalc.records.serving import Capacity, Layers
from memcalc.units import MIB

VERSION = "0.5.23"
SETTING = "mem_fraction_static"
CACHE_TYPE = "kv_cache_dtype"
LONGEST = "context_length"
ARGUMENTS = {
    SETTING: SHARE,
    "chunked_prefill_size": COUNT,
    LONGEST: COUNT,
    "page_size": COUNT,
    "max_running_requests": COUNT,
    "cuda_graph_max_bs": COUNT,
    "disable_cuda_graph": SWITCH,
    "swa_full_tokens_ratio": SHARE,
    CACHE_TYPE: CACHE_DTYPE,
}
_TIERS = (
    (20 * 1024, 2048, 8),
    (35 * 1024, 4096, 48),
    (60 * 1024, 4096, 32),
    (160 * 1024, 8192, 256),
    (float("inf"), 16384, 512),
)
"""MiB of the GPU below which it is of a tier, ``chunked_prefill_size``, and the largest batch of
decoding that is captured as a graph, on one GPU."""
_PREFILL_GRAPHS = (
    *range(4, 33, 4),
    *range(48, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1280, 4097, 256),
)
"""Tokens of prefills that are captured; every 512 after that."""
_META, _TOKEN, _GRAPH_BATCH, _PREFILL_GRAPH = 512, 1.5, 2, 8
"""MiB: for all, by token of a pass, by sequence of the largest graph, by captured prefill."""
_SLACK = 1024 / 8
"""MiB by GPU."""
_LARGE, _LEAST_OF_LARGE = 60 * 1024, 10 * 1024
_MLA_GRAPHS = 1.5 * 1024
_RATIO = 0.8

POOLED = (
    "GptOssForCausalLM",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
)
"""Models of transformers whose windows have a pool of their own (``configs/model_config.py``,
``is_hybrid_swa_model``); of all others every layer keeps all tokens."""


def _find_tier(gpu: Gpu) -> tuple[int, int]:
    """Return SGLang's default chunk size and graph batch for a GPU's memory."""
    return next((tokens, batch) for below, tokens, batch in _TIERS if _total_mib(gpu) < below)


def _total_mib(gpu: Gpu) -> float:
    """Return the GPU's memory in MiB, as nvidia-smi reports it."""
    return (gpu.nvml_memory or gpu.memory) / MIB


def largest(given: dict[str, Any], gpu: Gpu, longest: int | None) -> Size:
    """Return the size of SGLang's largest pass: one chunk of a prompt."""
    del longest
    return Size(sequences=1, tokens=given.get("chunked_prefill_size", _find_tier(gpu)[0]), limit=1)


def share(given: dict[str, Any], gpu: Gpu, *, latent: bool = False) -> float:
    """Return the share of GPU memory that SGLang takes for weights and KV cache."""
    if SETTING in given:
        return float(given[SETTING])
    tokens = largest(given, gpu, None).tokens
    held = _META + max(tokens, 2048) * _TOKEN + _SLACK
    if not given.get("disable_cuda_graph"):
        batch = min(
            given.get("cuda_graph_max_bs", _find_tier(gpu)[1]),
            given.get("max_running_requests", 1 << 30),
        )
        held += batch * _GRAPH_BATCH
        sizes = (*_PREFILL_GRAPHS, *range(4608, tokens + 1, 512))
        captured = sum(size <= tokens for size in sizes) * _PREFILL_GRAPH
        held += _MLA_GRAPHS if latent else captured
    total = _total_mib(gpu)
    if total > _LARGE:
        held = max(held, _LEAST_OF_LARGE)
    return round((total - held) / total, 3)


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache's two pools: of full-attention and of sliding-window layers."""

    full: int
    """Bytes of a token in all of the first."""
    window: int
    """In all of the second."""
    looks_back: int | None
    ratio: float
    """Tokens of the second pool by those of the first."""
    page: int

    @property
    def page_bytes(self) -> int:
        """Return the bytes of a page in all pools."""
        return self.page * (self.full + self.window)

    @property
    def cell(self) -> float:
        """Return the bytes of a token in the whole cache."""
        return self.full + self.ratio * self.window if self.full else self.window


def pools(kinds: tuple[Layers, ...], given: dict[str, Any]) -> Pools:
    """Return the pools into which SGLang divides its KV cache: full and sliding window.

    Raises:
        EstimateError: layers have windows of different sizes.
    """
    windows = {kind.window for kind in kinds if kind.window is not None}
    if len(windows) > 1:
        raise EstimateError("layers of this model have windows of different sizes")
    return Pools(
        full=sum(kind.layers * kind.bytes for kind in kinds if kind.window is None),
        window=sum(kind.layers * kind.bytes for kind in kinds if kind.window is not None),
        looks_back=next(iter(windows), None),
        ratio=float(given.get("swa_full_tokens_ratio", _RATIO)),
        page=int(given.get("page_size", 1)),
    )


def capacity(found: Pools, size: int, length: int, longest: int, most: int | None) -> Capacity:
    """Return how many tokens and sequences a KV cache of ``size`` bytes holds."""
    tokens = int(max(size, 0) // found.cell) // found.page * found.page
    behind = tokens
    if found.full and found.window:
        behind = int(tokens * found.ratio) // found.page * found.page
    allowed = min(max(min(int(tokens / longest * 512), 4096), 2048), tokens // 2)
    fitting = tokens // length
    if found.looks_back is not None:
        kept = min(length, found.looks_back + found.page)
        fitting = behind // kept if not found.full else min(fitting, behind // kept)
        if behind <= found.looks_back + found.page:
            fitting = 0
    return Capacity(
        bytes=max(size, 0),
        blocks=tokens // found.page,
        tokens=tokens,
        sequences=fitting,
        limit=allowed if most is None else min(most, tokens // 2),
        longest=min(tokens, longest) if found.full else longest if fitting else 0,
    )
