"""A recorded snapshot as a table, markdown or JSON."""

from __future__ import annotations

import io
import json

from rich.console import Console
from rich.table import Table

from memcalc.explanation.recorded import Recorded, WhatIf
from memcalc.files.artifact import SCHEMA, encode
from memcalc.records.prediction import ALLOCATOR_RUNGS as RUNGS
from memcalc.units import format_bytes, format_mib
from memcalc.version import __version__


def table(found: Recorded, *, top: int, width: int = 100) -> str:
    """For a person at a terminal."""
    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True, highlight=False)
    for line in _lines(found):
        console.print(line, markup=False)
    console.print("Alive at its end, by where it was made")
    sites = Table(box=None)
    for name in ("bytes", "n"):
        sites.add_column(name, justify="right", no_wrap=True)
    sites.add_column("line", overflow="fold")
    for site in found.held.sites[:top]:
        sites.add_row(format_bytes(site.bytes), str(site.count), site.name)
    rest = found.held.sites[top:]
    if rest:
        size, count = sum(site.bytes for site in rest), sum(site.count for site in rest)
        sites.add_row(format_bytes(size), str(count), f"{len(rest)} more lines")
    allocated = found.held.levels.allocated
    sites.add_row(format_mib(allocated), str(sum(s.count for s in found.held.sites)), "allocated")
    console.print(sites)
    console.print("Peaks of the same requests under other settings")
    console.print(_what_ifs(found))
    for one in found.what_ifs:
        if one.out_of_memory is not None:
            console.print(f"{_name(found, one)}: out of memory, {one.out_of_memory}", markup=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def markdown(found: Recorded, *, top: int) -> str:
    """For an issue or a pull request."""
    lines = [*_lines(found), "", "| alive at its end | bytes | n |", "|---|---:|---:|"]
    lines += [f"| `{s.name}` | {s.bytes:,} | {s.count} |" for s in found.held.sites[:top]]
    lines += ["", "| PYTORCH_ALLOC_CONF | requested | allocated | reserved | retries |"]
    lines += ["|---|---:|---:|---:|---:|"]
    for one in found.what_ifs:
        sizes = " | ".join(f"{getattr(one.peaks, rung):,}" for rung in RUNGS)
        lines.append(f"| {_name(found, one)} | {sizes} | {one.retries} |")
    return "\n".join(lines) + "\n"


def as_json(found: Recorded) -> str:
    """Everything, in exact bytes."""
    head = {"schema": SCHEMA, "kind": "snapshot", "memcalc": __version__}
    return json.dumps({**head, **encode(found)}, indent=1) + "\n"


def _lines(found: Recorded) -> list[str]:
    held = found.held
    rungs = ", ".join(f"{rung} {format_mib(getattr(held.levels, rung))}" for rung in RUNGS)
    lines = [
        f"{found.entries:,} events recorded with PYTORCH_ALLOC_CONF={found.conf or '(none)'}",
        f"at its end: {rungs}; {held.segments} segments, largest free block "
        f"{format_mib(held.largest_free)}",
    ]
    if found.replayed is not None:
        peaks = ", ".join(f"{rung} {format_mib(getattr(found.replayed, rung))}" for rung in RUNGS)
        lines.append(f"replayed, every address equal; peaks: {peaks}")
    else:
        lines.append(f"not replayed exactly: {found.not_replayed}")
    if found.older:
        lines.append(f"{found.older} storages are older than the recording: what follows estimates")
    return lines


def _what_ifs(found: Recorded) -> Table:
    grid = Table(box=None)
    grid.add_column("PYTORCH_ALLOC_CONF", overflow="fold")
    for name in (*RUNGS, "retries"):
        grid.add_column(name, justify="right", no_wrap=True)
    for one in found.what_ifs:
        sizes = [format_mib(getattr(one.peaks, rung)) for rung in RUNGS]
        grid.add_row(_name(found, one), *sizes, str(one.retries))
    return grid


def _name(found: Recorded, one: WhatIf) -> str:
    name = one.conf or "(none)"
    return f"{name} (as it ran)" if one.conf == found.conf else name
