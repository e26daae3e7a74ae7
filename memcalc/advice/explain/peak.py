"""The peak of each phase: everything alive, grouped, with the reason it is kept."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from memcalc.advice.explain import layers
from memcalc.advice.explain.records import Group, PeakContents
from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Phase, Trace, alive, highest, walk


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """How a storage ended."""

    phase: Phase
    step: int
    module: str
    """Where backward was then: the module of the last storage that it made."""


def deaths(trace: Trace) -> dict[int, Death]:
    """Return when each storage was freed, by storage number; storages never freed are left out."""
    found: dict[int, Death] = {}
    module = ""
    for mark, event, storage in walk(trace):
        if event >= 0:
            module = storage.module
        else:
            found[~event] = Death(phase=mark.phase, step=mark.step, module=module)
    return found


def find_reason(
    trace: Trace, number: int, death: Death | None, *, set_to_none: bool
) -> tuple[str, str]:
    """Return why a storage stays alive: a sentence with ``{}`` for a module, and that module."""
    storage = trace.storages[number]
    component = storage.component
    if component is Component.WEIGHTS and storage.module.startswith("copy of "):
        return "weight of a copy of the model", ""
    last_step = trace.steps if death is None else death.step
    if component is Component.INPUTS and trace.whole and last_step > storage.step + 2:
        by = f"held by the variable {storage.op}" if storage.op else "kept by the script"
        return f"data on the GPU, {by}", ""
    if component in _ALWAYS:
        return _ALWAYS[component], ""
    if component is Component.GRADIENTS:
        kept = "until zero_grad" if set_to_none else "always: zero_grad fills it with zeros"
        if death is not None and death.phase is Phase.BACKWARD:
            kept = "until its update, inside backward"
        elif trace.whole and storage.op:
            kept = f"held by the variable {storage.op}"
        return f"gradient, {kept}", ""
    if component is Component.WORKSPACES:
        ends = death is not None and death.step == storage.step and death.phase is storage.phase
        return ("scratch inside the kernel" if ends else "kept by the library for the run"), ""
    in_backward = death is not None and death.phase is Phase.BACKWARD
    outlives = component is Component.ACTIVATIONS and trace.whole and not in_backward
    if outlives or component is Component.HELD:
        by = f"the variable {storage.op}" if storage.op else "the script or a graph it keeps"
        return f"held by {by}; backward does not free it", ""
    saved = component is Component.ACTIVATIONS
    if death is not None and in_backward and (saved or storage.until):
        until = f" until {storage.until.removesuffix('0')}" if storage.until else ""
        what = "saved for backward" if saved else "temporary of backward"
        again = "recomputed, " if saved and storage.phase is Phase.BACKWARD else ""
        return f"{again}{what}{until} in {{}}", death.module
    if not saved:
        return f"temporary inside {storage.phase.value}", ""
    if death is not None and death.phase is Phase.FORWARD:
        return "outputs of the previous forward, kept until this forward returns", ""
    return "outputs, kept by the loop until the next forward returns", ""


_ALWAYS = {
    Component.WEIGHTS: "weight of the model",
    Component.QUANTIZED_WEIGHTS: "quantized weight of the model",
    Component.QUANTIZATION_CONSTANTS: "quantization scales",
    Component.KV_CACHE: "keys and values of past tokens, until the cache is gone",
    Component.MASTER_WEIGHTS: "fp32 copy of a weight",
    Component.BUFFERS: "buffer of the model",
    Component.OPTIMIZER_STATE: "optimizer state, from the first step on",
    Component.COMMUNICATION: "communication buffer",
    Component.AUTOCAST_COPIES: "autocast's copy of a weight, until its context ends",
    Component.UNSHARDED: "unsharded parameter, while it is used",
    Component.INPUTS: "the batch, until the next one is made",
}


def moments(trace: Trace, plan: Plan, *, depth: int | None = None) -> dict[Phase, PeakContents]:
    """Return the contents of memory at each phase's peak; ``depth`` cuts module paths."""
    ends = deaths(trace)
    return {
        phase: _describe_event(trace, plan, phase, event, ends, depth)
        for phase, event in highest(trace).items()
    }


def at_end(trace: Trace, plan: Plan, *, depth: int | None = None) -> PeakContents | None:
    """Return the contents of memory when a script without training ends, or None if it trains."""
    phases = {mark.phase for mark in trace.marks}
    if not trace.whole or Phase.BACKWARD in phases or not trace.events:
        return None
    last = len(trace.events) - 1
    return _describe_event(trace, plan, trace.marks[-1].phase, last, deaths(trace), depth)


def _describe_event(
    trace: Trace,
    plan: Plan,
    phase: Phase,
    event: int,
    deaths: dict[int, Death],
    depth: int | None,
) -> PeakContents:
    """Return all storages alive after an event of the trace, grouped by maker and reason."""
    groups: dict[Any, list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = defaultdict(list)
    components: dict[Component, int] = dict.fromkeys(Component, 0)
    for number in alive(trace, event):
        storage = trace.storages[number]
        components[storage.component] += storage.bytes
        why, where = find_reason(trace, number, deaths.get(number), set_to_none=plan.set_to_none)
        module, indices = layers.cut(storage.module, depth)
        other, others = layers.cut(where, depth)
        variable = trace.whole and storage.component is not Component.OPTIMIZER_STATE
        op = "" if variable or storage.phase is Phase.LOAD else storage.op
        key = storage.component, module, op, storage.dtype, why, other, storage.line
        groups[key].append((storage.bytes, indices, others))
    made = [_make_group(key, *zip(*alike, strict=True)) for key, alike in groups.items()]
    return PeakContents(
        phase=phase,
        event=event,
        requested=sum(components.values()),
        components={name: size for name, size in components.items() if size},
        groups=tuple(sorted(made, key=lambda group: -group.bytes)),
    )


def _make_group(
    key: Any, sizes: Sequence[int], indices: Sequence[Any], others: Sequence[Any]
) -> Group:
    """Return the group of storages with the same key: their count, bytes and module ranges."""
    component, module, op, dtype, why, other, line = key
    where = layers.write(other, set(others)) or "the loss"
    if other and (other, set(others)) == (module, set(indices)):
        where = "the same module"
    return Group(
        component=component,
        module=layers.write(module, set(indices)),
        op=op,
        dtype=dtype,
        count=len(sizes),
        bytes=sum(sizes),
        kept=why.replace("{}", where),
        line=line,
    )
