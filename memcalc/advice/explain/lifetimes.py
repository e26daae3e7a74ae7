"""The lifetime of each storage: when it was allocated, and when and where it was freed."""

from __future__ import annotations

import msgspec

from memcalc.records.trace import Component, Phase, Trace
from memcalc.records.walk import walk


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """How a storage ended."""

    event: int
    phase: Phase
    step: int
    module: str
    """Where backward was then: the module of the last storage that it made."""


def deaths(trace: Trace) -> dict[int, Death]:
    """The death of each storage, by number; those that outlive the trace have none."""
    found: dict[int, Death] = {}
    module = ""
    for index, (mark, event, storage) in enumerate(walk(trace)):
        if event >= 0:
            module = storage.module
        else:
            found[~event] = Death(event=index, phase=mark.phase, step=mark.step, module=module)
    return found


def kept(trace: Trace, number: int, death: Death | None, *, set_to_none: bool) -> tuple[str, str]:
    """What keeps a storage alive: a sentence with ``{}`` for a module, and that module."""
    storage = trace.storages[number]
    component = storage.component
    if component is Component.WEIGHTS and storage.module.startswith("copy of "):
        return "weight of a copy of the model", ""
    if component in _ALWAYS:
        return _ALWAYS[component], ""
    if component is Component.GRADIENTS:
        kept = "until zero_grad" if set_to_none else "always: zero_grad fills it with zeros"
        if death is not None and death.phase is Phase.BACKWARD:
            kept = "until its update, inside backward"
        return f"gradient, {kept}", ""
    if component is Component.WORKSPACES:
        ends = death is not None and death.step == storage.step and death.phase is storage.phase
        return ("scratch inside the kernel" if ends else "kept by the library for the run"), ""
    in_backward = death is not None and death.phase is Phase.BACKWARD
    outlives = component is Component.ACTIVATIONS and trace.whole and not in_backward
    if outlives or component is Component.HELD:
        by = f"the variable {storage.op}" if storage.op else "the script"
        return f"held by {by}; backward does not free it", ""
    in_whose_backward = component is Component.ACTIVATIONS and in_backward and not storage.until
    if in_whose_backward and death is not None:
        again = "recomputed, " if storage.phase is Phase.BACKWARD else ""
        return f"{again}saved for backward in {{}}", death.module
    if component is Component.ACTIVATIONS and death is not None and death.phase is Phase.FORWARD:
        return "outputs of the previous forward, kept until this forward returns", ""
    if death is None or death.phase is not Phase.BACKWARD or not storage.until:
        if component is Component.ACTIVATIONS:
            return "outputs, kept by the loop until the next forward returns", ""
        return f"temporary inside {storage.phase.value}", ""
    node = storage.until.removesuffix("0")
    if component is Component.ACTIVATIONS:
        again = "recomputed, " if storage.phase is Phase.BACKWARD else ""
        return f"{again}saved for backward until {node} in {{}}", death.module
    return f"temporary of backward until {node} in {{}}", death.module


_ALWAYS = {
    Component.WEIGHTS: "weight of the model",
    Component.QUANTISED_WEIGHTS: "quantized weight of the model",
    Component.QUANTISATION_CONSTANTS: "quantization scales",
    Component.KV_CACHE: "keys and values of past tokens, until the cache is gone",
    Component.MASTER_WEIGHTS: "fp32 copy of a weight",
    Component.BUFFERS: "buffer of the model",
    Component.OPTIMIZER_STATE: "optimizer state, from the first step on",
    Component.COMMUNICATION: "communication buffer",
    Component.UNSHARDED: "unsharded parameter, while it is used",
    Component.INPUTS: "the batch, until the next one is made",
}
