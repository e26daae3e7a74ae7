"""The tables of a single measured run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from memcalc.accuracy.compare import Difference
from memcalc.allocator.counter import Levels
from memcalc.records.measurement import Measurement, last_finished
from memcalc.records.trace import Phase
from memcalc.units import format_mib


def phases(measured: Measurement) -> Table:
    """The peak of each phase of the last step on every rung that is known."""
    table = Table(title="Peak by phase", box=None, title_justify="left")
    table.add_column("phase")
    known = [
        r
        for r in Levels.__struct_fields__
        if any(getattr(p, r) is not None for p in measured.phases)
    ]
    last = last_finished(measured.phases) or 0
    for rung in known:
        table.add_column(rung, justify="right")
    table.add_column("first step", justify="right")
    for phase in Phase:
        steady = [r for r in measured.phases if r.phase is phase and r.step in (last, 0)]
        shown = [r for r in steady if r.step == last] or steady
        if not shown:
            continue
        first = max((getattr(r, known[0]) for r in steady if r.step == 0), default=None)
        levels = [max(getattr(r, rung) for r in shown) for rung in known]
        table.add_row(
            phase.value,
            *map(format_mib, levels),
            format_mib(first) if last and first is not None else "",
        )
    return table


def differences(found: Sequence[Difference]) -> Table:
    """Estimate and measurement, figure by figure."""
    table = Table(title="Estimate against measurement, worst first", box=None, title_justify="left")
    table.add_column("figure")
    for head in ("estimate", "measured", "error (bytes)", "error"):
        table.add_column(head, justify="right")
    for item in found:
        relative = f"{item.relative:+.3%}" if item.relative is not None else ""
        table.add_row(
            item.name, f"{item.predicted:,}", f"{item.measured:,}", f"{item.error:+,}", relative
        )
    return table
