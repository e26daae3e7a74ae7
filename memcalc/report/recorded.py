"""A recorded snapshot as blocks, and as JSON."""

from memcalc.advice.explain.recorded import Recorded, WhatIf
from memcalc.allocator.levels import Levels
from memcalc.records.prediction import ALLOCATOR_RUNGS as RUNGS
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table
from memcalc.units import MIB, Unit, format_mib


def blocks(found: Recorded, top: int) -> list[Block]:
    """What is alive at the end, by line of code; then the peaks under other settings."""
    shown, rest = found.held.sites[:top], found.held.sites[top:]
    sites: list[tuple[Cell, ...]] = [(Size(s.bytes), str(s.count), s.name) for s in shown]
    if rest:
        size, count = sum(site.bytes for site in rest), sum(site.count for site in rest)
        sites.append((Size(size), str(count), f"{len(rest)} more lines"))
    count = sum(site.count for site in found.held.sites)
    sites.append((Size(found.held.levels.allocated), str(count), "allocated"))
    settings: list[tuple[Cell, ...]] = []
    for one in found.what_ifs:
        peaks = [Size(getattr(one.peaks, rung), Unit("MiB", MIB)) for rung in RUNGS]
        settings.append((_name(found, one), *peaks, str(one.retries)))
    return [
        *map(Line, _lines(found)),
        Line("Alive at the end, by the line that allocated it", Kind.SECTION),
        Table(head=("bytes", "n", "line"), rows=sites, words=(2,)),
        Line("Peaks of the same requests under other settings", Kind.SECTION),
        Table(
            head=("PYTORCH_ALLOC_CONF", *(f"{rung} MiB" for rung in RUNGS), "retries"),
            rows=settings,
        ),
        *(
            Line(f"{_name(found, one)}: out of memory, {one.out_of_memory}")
            for one in found.what_ifs
            if one.out_of_memory is not None
        ),
    ]


def _lines(found: Recorded) -> list[str]:

    def rungs(levels: Levels) -> str:
        return ", ".join(f"{rung} {format_mib(getattr(levels, rung))}" for rung in RUNGS)

    held = found.held
    lines = [
        f"{found.entries:,} events recorded with PYTORCH_ALLOC_CONF={found.conf or '(none)'}",
        f"at its end: {rungs(held.levels)}; {held.segments} segments, largest free block "
        f"{format_mib(held.largest_free)}",
    ]
    if found.replayed is not None:
        lines.append(f"replayed, every address equal; peaks: {rungs(found.replayed)}")
    else:
        lines.append(f"not replayed exactly: {found.not_replayed}")
    if found.older:
        lines.append(
            f"{found.older} storages are older than the recording: the figures below are estimates"
        )
    return lines


def _name(found: Recorded, one: WhatIf) -> str:
    name = one.conf or "(none)"
    return f"{name} (as it ran)" if one.conf == found.conf else name
