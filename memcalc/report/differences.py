"""A difference as blocks and as JSON."""

from collections.abc import Iterator, Sequence

from memcalc.advice.explain.difference import Change, Difference
from memcalc.report import rows
from memcalc.report.blocks import Block, Cell, Kind, Line, Table, sized
from memcalc.units import Unit, signed_bytes, unit_for


def blocks(found: Difference, top: int) -> Iterator[Block]:
    """By how much and why in a line; then by rung, component, phase and kind of storage."""
    yield Line(_headline(found), Kind.HEADING)
    yield Line(f"  before: {rows.heading(found.before)}")
    yield Line(f"  now:    {rows.heading(found.now)}")
    for what, said in (("settings", found.settings), ("versions", found.versions)):
        if said:
            yield Line(f"  {what}: {', '.join(said)}")
    for one in (found.now, found.before):
        words = rows.verdict(one)
        if words is not None:
            yield Line(f"  {'now' if one is found.now else 'before'}: {words}")
    if found.same:
        return
    largest = max(c.before or c.now or 0 for c in found.rungs)
    unit = unit_for(largest)
    yield Line("")
    yield _table("at the peak", found.components, unit)
    yield _table("ladder", found.rungs, unit)
    yield _table("peak of the phase", found.phases, unit)
    if found.kinds:
        yield _table("kind of storage", found.kinds[:top], unit)
        if len(found.kinds) > top:
            yield Line(f"{len(found.kinds) - top} more kinds (--top {len(found.kinds)} shows them)")


def _headline(found: Difference) -> str:
    if found.same:
        return "no figure changed"
    rung = next(c for c in reversed(found.rungs) if c.by is not None)
    name = rung.name.replace("_", " ")
    largest = found.components[0]
    name_of_it = largest.name.replace("_", " ")
    why = f"; most of it {name_of_it} ({signed_bytes(largest.by)})" if largest.by else ""
    return f"{name} {signed_bytes(rung.by) if rung.by else 'unchanged'}{why}"


def _table(title: str, changes: Sequence[Change], unit: Unit) -> Table:
    body: list[tuple[Cell, ...]] = []
    for change in changes:
        if change.before == change.now and not change.before:
            continue
        name = change.name if ":" in change.name else change.name.replace("_", " ")
        share = f" ({change.by / change.before:+.1%})" if change.before and change.by else ""
        by = "n/a" if change.by is None else "same"
        if change.by:
            by = f"{signed_bytes(change.by)}{share}"
        body.append((name, sized(change.before, unit), sized(change.now, unit), by))
    return Table(head=(title, f"before {unit.name}", f"now {unit.name}", "change"), rows=body)
