"""From a trace to the life of each storage: when it was born, when and where it died."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from memcalc.records.steady import last_step
from memcalc.records.trace import Component, Mark, Phase, Trace


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
    for index, (mark, event) in enumerate(walk(trace)):
        if event >= 0:
            module = trace.storages[event].module
        else:
            found[~event] = Death(event=index, phase=mark.phase, step=mark.step, module=module)
    return found


def walk(trace: Trace) -> Iterator[tuple[Mark, int]]:
    """Every event, with the phase it happens in."""
    marks = iter((*trace.marks, None))
    current, following = Mark(index=0, phase=Phase.LOAD, step=0), next(marks)
    for index, event in enumerate(trace.events):
        while following is not None and following.index <= index:
            current, following = following, next(marks)
        yield current, event


def highest(trace: Trace) -> dict[Phase, int]:
    """The event after which each phase of the steady step holds the most requested bytes.

    What is held when a phase begins counts as its own.
    """
    levels = [0]
    for event in trace.events:
        size = trace.storages[event].bytes if event >= 0 else -trace.storages[~event].bytes
        levels.append(levels[-1] + size)
    found: dict[Phase, int] = {}
    ends = [*(mark.index for mark in trace.marks[1:]), len(trace.events)]
    for mark, last in zip(trace.marks, ends, strict=True):
        wanted = 0 if mark.phase is Phase.RESUME else trace.steps - 1
        if mark.step != wanted or mark.phase is Phase.LOAD:
            continue
        top = max(range(mark.index, last + 1), key=levels.__getitem__)
        if mark.phase not in found or levels[top] > levels[found[mark.phase] + 1]:
            found[mark.phase] = top - 1
    return found


def end(trace: Trace) -> int:
    """How many events there are before the program ends and frees what is left.

    An evaluation ends with the last event of a storage of its own.
    """
    if any(mark.phase is Phase.EVAL for mark in trace.marks):
        born = [trace.storages[event if event >= 0 else ~event].phase for event in trace.events]
        return max(index for index, phase in enumerate(born) if phase is Phase.EVAL) + 1
    return last_step(trace.events, trace.marks)[1]


def alive(trace: Trace, event: int) -> list[int]:
    """Numbers of the storages alive right after an event, in order of birth."""
    living: dict[int, None] = {}
    for happened in trace.events[: event + 1]:
        if happened >= 0:
            living[happened] = None
        else:
            del living[~happened]
    return list(living)


def kept(trace: Trace, number: int, death: Death | None, *, set_to_none: bool) -> tuple[str, str]:
    """What keeps a storage alive: a sentence with ``{}`` for a module, and that module."""
    storage = trace.storages[number]
    component = storage.component
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
    if component is Component.ACTIVATIONS and death is not None and death.phase is Phase.FORWARD:
        return "outputs of the forward before: the loop holds them until this one has its own", ""
    if death is None or death.phase is not Phase.BACKWARD or not storage.until:
        if component is Component.ACTIVATIONS:
            return "outputs: the loop holds them until the next forward has made its own", ""
        return f"temporary inside {storage.phase.value}", ""
    node = storage.until.removesuffix("0")
    if component is Component.ACTIVATIONS:
        again = "recomputed, " if storage.phase is Phase.BACKWARD else ""
        return f"{again}saved for backward until {node} in {{}}", death.module
    return f"temporary of backward until {node} in {{}}", death.module


_ALWAYS = {
    Component.WEIGHTS: "weight of the model",
    Component.MASTER_WEIGHTS: "fp32 copy of a weight",
    Component.BUFFERS: "buffer of the model",
    Component.OPTIMIZER_STATE: "optimizer state, from the first step on",
    Component.INPUTS: "the batch, until the loop has made the next",
}
