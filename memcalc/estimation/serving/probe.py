"""The forward pass that an engine's figures are read from."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from memcalc.errors import EstimateError, SettingError
from memcalc.records.model import DTYPE_BYTES
from memcalc.records.plan import Plan
from memcalc.records.serving import Layers
from memcalc.records.trace import Component, Phase, Trace, walk
from memcalc.records.values import check_value

SHARE = Annotated[float, Meta(ge=0.01, le=1, title="a share from 0.01 to 1")]
COUNT = Annotated[int, Meta(ge=1, le=1 << 53, title="a whole number from 1")]
SWITCH = bool
CACHE_DTYPE = Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"]


def arguments(plan: Plan, known: dict[str, Any]) -> dict[str, Any]:
    """Check the plan's ``engine_args`` by their known types, and return them.

    Raises:
        SettingError: one is unknown, or of the wrong type or size.
    """
    found = {}
    for name, value in plan.engine_args:
        if name not in known:
            raise SettingError(
                "engine_args",
                f"--engine-arg {name} is not one that memcalc reads for {plan.engine}: those are "
                f"{', '.join(known)}.",
            )
        try:
            found[name] = check_value(f"--engine-arg {name}", known[name], value)
        except SettingError as error:
            raise SettingError("engine_args", str(error)) from None
    return found


def element(cache_type: str, own: int) -> int:
    """Return the bytes per element of a KV cache of this dtype; ``own`` for ``auto``."""
    if cache_type == "auto":
        return own
    return 1 if cache_type.startswith("fp8") else 2


_NUMBER = re.compile(r"\.(\d+)(?:\.|$)")
"""Of a layer, in the name of a module."""
_PASSES = 2
"""Tokens that the probe generates: what a layer keeps of a token is what the second one adds."""
_HELD = (Component.WEIGHTS, Component.BUFFERS, Component.KV_CACHE)
"""What is not of a pass alone."""


_FLOATS = ("float32", "bfloat16", "float16")
"""Of a cache: a layer with a window counts its tokens beside, in whole numbers."""


class Size(msgspec.Struct, frozen=True):
    """The largest pass that an engine makes."""

    sequences: int
    tokens: int
    limit: int
    """Sequences that the engine runs at once; the pass may be of fewer."""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """Figures read off the trace of such a pass, in bytes."""

    weights: int
    activations: int
    """The most that a pass and its sampler hold at once beside weights and cache."""
    model: int
    """The most that the pass alone does."""
    kept: dict[str, int]
    """Of one token, by the module that keeps it."""
    element: int
    """Of the cache's type."""


def generating(plan: Plan) -> Plan:
    """Return the plan as a generation on one GPU, which the engine's rules are read from."""
    return replace(
        plan,
        engine_args=(),
        inference=False,
        generate=_PASSES,
        parallel=f"tp={plan.devices}" if plan.devices > 1 else None,
        parallel_args=(("divide_embedding", True),) if plan.devices > 1 else (),
    )


def make_plan(plan: Plan, size: Size, longest: int | None) -> Plan:
    """Return the plan whose first forward pass is the engine's largest one.

    Sequences that would be longer than ``longest`` become more and shorter ones.
    """
    each = max(size.tokens // size.sequences, 1)
    if longest is not None:
        each = max(min(each, longest - _PASSES), 1)
    return replace(
        generating(plan),
        batch=max(size.tokens // each, 1),
        seq=each,
    )


def read(trace: Trace, sequences: int) -> Read:
    """Read weights, activations and KV-cache bytes per token from a traced forward pass.

    Raises:
        EstimateError: the model keeps nothing of a token, or something that does not grow.
    """
    now = most = inside = model = weights = 0
    held: dict[Phase, dict[str, int]] = {Phase.PREFILL: {}, Phase.DECODE: {}}
    element = 1
    for mark, event, storage in walk(trace):
        if storage.component is Component.WEIGHTS and event >= 0:
            weights += storage.bytes
        if storage.component not in _HELD:
            size = storage.bytes if event >= 0 else -storage.bytes
            now += size
            # What no module made is the sampler's.
            inside += size if storage.module else 0
            if mark.phase is Phase.PREFILL:
                most, model = max(most, now), max(model, inside)
        elif event >= 0 and storage.phase in held and storage.dtype in _FLOATS:
            by_module = held[storage.phase]
            by_module[storage.module] = by_module.get(storage.module, 0) + storage.bytes
            element = DTYPE_BYTES.get(storage.dtype, element)
    early, late = held[Phase.PREFILL], held[Phase.DECODE]
    kept = {name: (late.get(name, 0) - size) // sequences for name, size in early.items()}
    if not kept:
        raise EstimateError("the model has no KV cache, so memcalc knows no engine's memory for it")
    if any(size <= 0 for size in kept.values()):
        raise EstimateError(
            "some of the model's layers keep a state instead of keys and values: how engines "
            "divide memory between the two is not supported yet"
        )
    return Read(weights=weights, activations=most, model=model, kept=kept, element=element)


def kinds(
    kept: Mapping[str, int], windows: Sequence[int | None], latent: int | None, scale: float
) -> tuple[Layers, ...]:
    """Group layers by KV-cache bytes per token and window, full attention first."""
    count: dict[tuple[int, int | None], int] = {}
    for module, size in kept.items():
        layer = _NUMBER.search(module)
        window = windows[int(layer[1])] if layer is not None else windows[0]
        key = int((size if latent is None else latent) * scale), window
        count[key] = count.get(key, 0) + 1
    found = [Layers(layers=n, bytes=size, window=w) for (size, w), n in count.items()]
    return tuple(sorted(found, key=lambda kind: kind.window is not None))
