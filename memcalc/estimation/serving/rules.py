"""Applies a serving engine's memory rules to a simulated forward pass."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.catalog.gpus import Gpu, architectures
from memcalc.errors import SettingError, UsageError
from memcalc.estimation.fits import CODE, CONTEXT, NCCL, outside_span
from memcalc.estimation.serving import probe
from memcalc.estimation.serving import sglang_rules as sglang
from memcalc.estimation.serving import vllm_rules as vllm
from memcalc.estimation.serving.probe import Read, Size
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, FitVerdict, Peak, PhasePeak, Prediction, Span
from memcalc.records.serving import TITLES, Capacity, Layers, Serving, Taken
from memcalc.records.trace import Component, Phase
from memcalc.units import format_bytes

_ENGINES: dict[str, Any] = {"vllm": vllm, "sglang": sglang}


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model as an engine's rules see it."""

    name: str
    positions: int | None
    """Positions that its config names; ``None``: it names none."""
    windows: tuple[int | None, ...]
    """Attention window of each layer with a KV cache; ``None``: the layer attends to all tokens."""
    vocabulary: int
    width: int
    """Elements of a token's hidden state."""
    latent: int | None
    """Elements of the compressed latent (MLA) that a layer keeps of a token; ``None``: none."""


class ServingEngine:
    """A serving engine with the settings of a plan."""

    def __init__(self, plan: Plan, gpu: Gpu, model: Model) -> None:
        """Read the plan's settings.

        Raises:
            SettingError: the engine has no such setting, or no bf16 on this GPU.
        """
        assert plan.engine is not None
        computes = architectures()[gpu.capability].bf16
        if plan.engine == "vllm" and plan.precision == "bf16" and not computes:
            told = f"vLLM does not start in bf16 on {gpu.name}: type --precision fp16."
            raise SettingError("precision", told)
        self._plan = plan
        self._gpu = gpu
        self._model = model
        self._rules = _ENGINES[plan.engine]
        self._given = probe.arguments(plan, self._rules.ARGUMENTS)
        self._longest = self._given.get(self._rules.LONGEST, model.positions)
        self.size: Size = self._rules.largest(self._given, gpu, self._longest)

    @property
    def title(self) -> str:
        """Return the engine's name as people write it."""
        return TITLES[self._plan.engine or ""]

    def probe(self) -> Plan:
        """Return the plan of the engine's largest forward pass, to trace."""
        ends = [*self._model.windows, self._model.positions]
        # Within its window, a layer keeps every token.
        return probe.make_plan(self._plan, self.size, min((n for n in ends if n), default=None))

    def serving(self, read: Read, length: int) -> Serving:
        """Return what the engine reserves by its rules, and how many sequences fit.

        Raises:
            UsageError: nothing is left for the KV cache.
        """
        longest = self.check(length)
        latent = {"latent": self._model.latent is not None} if self._rules is sglang else {}
        share = float(self._rules.share(self._given, self._gpu, **latent))
        budget = math.ceil(self._gpu.memory * share)
        taken = tuple(self._list_items(read, share))
        ends = [budget - sum(one.high for one in taken), budget - sum(one.low for one in taken)]
        if ends[1] <= 0:
            raise UsageError(self._write_refusal(taken, share, budget))
        kinds = self._group_layers(read)
        least, most, block, block_bytes = self._calculate_capacities(kinds, ends, length, longest)
        return Serving(
            engine=self._plan.engine or "",
            version=self._rules.VERSION,
            share=share,
            setting=self._rules.SETTING,
            memory=self._gpu.memory,
            budget=budget,
            taken=taken,
            gpus=self._plan.devices,
            kinds=kinds,
            block=block,
            block_bytes=block_bytes,
            length=length,
            batched_tokens=self.size.tokens,
            activations=read.activations,
            least=least,
            most=most,
        )

    def check(self, length: int) -> int:
        """Return the longest sequence the engine takes; raise UsageError if ``length`` exceeds it.

        Raises:
            UsageError: the longest is shorter than this, or unknown.
        """
        longest = self._longest
        if longest is None:
            raise SettingError(
                "engine_args",
                f"{self._model.name} does not name its longest sequence: type --engine-arg "
                f"{self._rules.LONGEST}=N.",
            )
        if length > longest:
            raise UsageError(
                f"{self.title} takes sequences of {longest:,} tokens here, but --seq and "
                f"--generate ask for {length:,}: ask for fewer, or raise "
                f"--engine-arg {self._rules.LONGEST}."
            )
        return int(longest)

    def _list_items(self, read: Read, share: float) -> Sequence[Taken]:
        """Return the items that reduce the KV cache: weights, activations, graphs, context."""
        several = (self._plan.devices,) if self._plan.devices > 1 else ()
        parts = {part.name: part for part in outside_span(self._gpu, groups=several).parts}
        found = [Taken(name="weights", low=read.weights, high=read.weights, source="traced")]
        if self._rules is vllm:
            words, width = self._model.vocabulary, self._model.width
            most = max(read.activations, vllm.sampling(self.size, words, width, read.element))
            sampler = "traced; high end: with sampling"
            found.append(Taken(name="activations", low=read.model, high=most, source=sampler))
            found.append(vllm.sampler_state(self.size.sequences, words))
            graphs = vllm.graphs(self._given)
            found += [graphs] if graphs is not None else []
        else:
            # SGLang takes its share of the memory that is free after the context is created.
            found.append(_make_item(parts[CONTEXT], share))
        outside = {CODE: "kernels, libraries", NCCL: NCCL}
        return [
            *found,
            *(_make_item(parts[p], 1, name) for p, name in outside.items() if p in parts),
        ]

    def _write_refusal(self, taken: Sequence[Taken], share: float, budget: int) -> str:
        said = ", ".join(f"{one.name} {format_bytes(one.low)}" for one in taken if one.low)
        hint = f"raise --engine-arg {self._rules.SETTING}, or name a larger --gpu."
        if sum(one.low for one in taken) >= self._gpu.memory:
            # Not even the whole GPU is enough.
            more = ", or more --devices" if self._rules is vllm else ""
            hint = f"name a larger --gpu{more}."
        return (
            f"{self.title} would not start on {self._gpu.name}: its share, {share:g} x "
            f"{format_bytes(self._gpu.memory)} = {format_bytes(budget)}, has no room for a "
            f"KV cache after {said}: {hint}"
        )

    def _group_layers(self, read: Read) -> tuple[Layers, ...]:
        size = probe.element(self._given.get(self._rules.CACHE_TYPE, "auto"), read.element)
        latent = self._model.latent * read.element if self._model.latent is not None else None
        windows = self._model.windows
        if self._rules is sglang and self._model.name not in sglang.POOLED:
            windows = (None,) * len(windows)
        return probe.kinds(read.kept, windows, latent, size / read.element)

    def _calculate_capacities(
        self, kinds: tuple[Layers, ...], ends: Sequence[int], length: int, longest: int
    ) -> tuple[Capacity, Capacity, int, int]:
        """Return the cache's capacity at both ends of its size, block tokens and bytes."""
        if self._rules is vllm:
            block = int(self._given.get("block_size", vllm.BLOCK))
            groups = vllm.groups(kinds, block, self.size.tokens)
            least, most = (
                vllm.capacity(groups, size, length, longest, self.size.limit) for size in ends
            )
            return least, most, block, groups.block_bytes
        pools = sglang.pools(kinds, self._given)
        asked = self._given.get("max_running_requests")
        least, most = (sglang.capacity(pools, size, length, longest, asked) for size in ends)
        return least, most, pools.page, pools.page_bytes


def _make_item(part: Span, share: float, name: str = CONTEXT) -> Taken:
    return Taken(
        name=name,
        low=int(part.low * share),
        high=int(part.high * share),
        source=part.source,
    )


def make_prediction(base: Prediction, plan: Plan, serving: Serving, gpu: Gpu) -> Prediction:
    """Return the prediction of an engine's memory, from the traced forward pass."""
    weights = next(one.low for one in serving.taken if one.name == "weights")
    cache = serving.least.bytes
    components = dict.fromkeys(base.components, 0)
    components |= {Component.WEIGHTS: weights, Component.TEMPORARIES: serving.activations}
    components[Component.KV_CACHE] = cache
    requested = weights + serving.activations + cache
    reason = f"{TITLES[serving.engine]} was not run: its rules are applied to the traced model"
    return replace(
        base,
        plan=plan,
        seq=serving.length - (plan.generate or 0),
        components=components,
        phases=(PhasePeak(phase=Phase.PREFILL, requested=requested),),
        peak=Peak(phase=Phase.PREFILL, requested=requested),
        fit=judge_fit(serving, gpu),
        rules_of_thumb=(),
        flops=None,
        context=None,
        serving=serving,
        assumptions=_describe_rules(serving),
        uncounted=(
            "buffers of top-p and top-k sampling without FlashInfer",
            "images and audio",
            "adapters",
            "draft models of speculative decoding",
            "other processes on the GPU",
        ),
        unknown=dict.fromkeys(("allocated", "reserved", "process_used", "flops"), reason),
    )


def judge_fit(serving: Serving, gpu: Gpu) -> Fit:
    """Judge whether an engine serves one sequence at least, at both ends of its range."""
    verdict = FitVerdict.DOES_NOT_FIT
    if serving.most.running:
        verdict = FitVerdict.FITS if serving.least.running else FitVerdict.TIGHT
    return Fit(
        gpu=gpu.name,
        capacity=gpu.memory,
        needed=serving.budget,
        metric="process_used",
        verdict=verdict,
    )


def _describe_rules(serving: Serving) -> tuple[str, ...]:
    title = TITLES[serving.engine]
    each = sum(kind.layers * kind.bytes for kind in serving.kinds)
    layers = " and ".join(
        f"{kind.layers} layers" + (f" with a window of {kind.window:,}" if kind.window else "")
        for kind in serving.kinds
    )
    said = [
        f"each token takes {each:,} bytes of KV cache, in {layers}",
        f"a forward pass has at most {serving.batched_tokens:,} tokens",
        "weights as in transformers, in the plan's precision",
    ]
    if serving.least.limit < serving.least.sequences:
        said.append(f"{title} runs at most {serving.least.limit:,} sequences at once")
    if serving.engine == "sglang":
        left = serving.memory - serving.budget
        said.append(
            f"the {format_bytes(left)} outside the share are for activations and CUDA graphs; the "
            f"largest pass needs {format_bytes(serving.activations)} of them in transformers"
        )
    return tuple(said)
