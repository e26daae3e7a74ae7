"""A difference as blocks and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memcalc.advice.explain.difference import Change, Difference
from memcalc.report import rows
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table
from memcalc.units import Unit, format_bytes, unit_for


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
    why = f"; most of it {_words(largest.name)} ({_signed(largest.by or 0)})" if largest.by else ""
    return f"{name} {_signed(rung.by or 0)}{why}"


def _signed(size: int) -> str:
    return f"{'+' if size > 0 else '-'}{format_bytes(abs(size))}" if size else "unchanged"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _table(title: str, changes: Sequence[Change], unit: Unit) -> Table:
    body: list[tuple[Cell, ...]] = []
    for change in changes:
        if change.before == change.now and not change.before:
            continue
        name = change.name if ":" in change.name else _words(change.name)
        body.append((name, _size(change.before, unit), _size(change.now, unit), _by(change)))
    return Table(head=(title, f"before {unit.name}", f"now {unit.name}", "change"), rows=body)


def _size(size: int | None, unit: Unit) -> Cell:
    return Size(size, unit) if size is not None else "n/a"


def _by(change: Change) -> str:
    if change.by is None:
        return "n/a"
    share = f" ({change.by / change.before:+.1%})" if change.before and change.by else ""
    return f"{_signed(change.by)}{share}" if change.by else "same"
