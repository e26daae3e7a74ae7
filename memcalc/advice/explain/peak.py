"""The peak of each phase: everything alive, grouped, with the reason it is kept."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from memcalc.advice.explain import lifetimes, module_names
from memcalc.advice.explain.records import Group, PeakContents
from memcalc.records.plan import Plan
from memcalc.records.trace import Component, Phase, Trace
from memcalc.records.walk import alive, highest


def moments(trace: Trace, plan: Plan, *, depth: int | None = None) -> dict[Phase, PeakContents]:
    """The highest moment of each phase of the steady step.

    Args:
        trace: what happened.
        plan: what was traced.
        depth: names of a module's path to keep, so that what is inside is one group.
    """
    deaths = lifetimes.deaths(trace)
    return {
        phase: _moment(trace, plan, phase, event, deaths, depth)
        for phase, event in highest(trace).items()
    }


def at_end(trace: Trace, plan: Plan, *, depth: int | None = None) -> PeakContents | None:
    """What a script that trains nothing still holds when it ends; ``None``: it trains."""
    phases = {mark.phase for mark in trace.marks}
    if not trace.whole or Phase.BACKWARD in phases or not trace.events:
        return None
    last = len(trace.events) - 1
    return _moment(trace, plan, trace.marks[-1].phase, last, lifetimes.deaths(trace), depth)


def _moment(
    trace: Trace,
    plan: Plan,
    phase: Phase,
    event: int,
    deaths: dict[int, lifetimes.Death],
    depth: int | None,
) -> PeakContents:
    groups: dict[Any, _Growing] = defaultdict(_Growing)
    components: dict[Component, int] = dict.fromkeys(Component, 0)
    for number in alive(trace, event):
        storage = trace.storages[number]
        components[storage.component] += storage.bytes
        why, where = lifetimes.kept(trace, number, deaths.get(number), set_to_none=plan.set_to_none)
        module, indices = module_names.cut(storage.module, depth)
        other, others = module_names.cut(where, depth)
        variable = trace.whole and storage.component is not Component.OPTIMIZER_STATE
        op = "" if variable or storage.phase is Phase.LOAD else storage.op
        group = groups[storage.component, module, op, storage.dtype, why, other, storage.line]
        group.add(storage.bytes, indices, others)
    made = [_group(key, growing) for key, growing in groups.items()]
    return PeakContents(
        phase=phase,
        event=event,
        requested=sum(components.values()),
        components={name: size for name, size in components.items() if size},
        groups=tuple(sorted(made, key=lambda group: -group.bytes)),
    )


class _Growing:
    """A group while storages are added to it."""

    __slots__ = ("bytes", "count", "indices", "others")

    def __init__(self) -> None:
        self.bytes = self.count = 0
        self.indices: set[tuple[int, ...]] = set()
        self.others: set[tuple[int, ...]] = set()

    def add(self, size: int, indices: tuple[int, ...], others: tuple[int, ...]) -> None:
        self.bytes += size
        self.count += 1
        self.indices.add(indices)
        self.others.add(others)


def _group(key: Any, growing: _Growing) -> Group:
    component, module, op, dtype, why, other, line = key
    where = module_names.write(other, growing.others) or "the loss"
    if other and (other, growing.others) == (module, growing.indices):
        where = "the same module"
    return Group(
        component=component,
        module=module_names.write(module, growing.indices),
        op=op,
        dtype=dtype,
        count=growing.count,
        bytes=growing.bytes,
        kept=why.replace("{}", where),
        line=line,
    )
