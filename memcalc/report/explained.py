"""Explanations and differences as blocks, in the order people read them."""

import re
from collections.abc import Iterator, Sequence

from memcalc.advice.explain.difference import Change, Difference
from memcalc.advice.explain.layers import LayerKind
from memcalc.advice.explain.records import Explanation, Group, PeakContents
from memcalc.advice.remedies.records import Figures, Search, Trial
from memcalc.records.fields import options
from memcalc.records.trace import Component
from memcalc.report import answer, rows
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table, size_or, sizes
from memcalc.report.rows import STYLES
from memcalc.units import Unit, format_bytes, format_mib, signed_bytes, unit_for

HELPFUL = 8
"""Remedies that a screen shows: those that save most."""


def blocks(explanation: Explanation, top: int, *, verbose: bool = True) -> list[Block]:
    """Return an explanation as blocks: verdict, remedies, largest groups alive at the peak."""
    prediction = explanation.prediction
    rungs = [f"{name} {value}" for name, value in rows.ladder(prediction)]
    return [
        answer.headline(prediction),
        Line(f"  {rows.heading(prediction)}"),
        *(Line(f"  {words}") for words in rows.outcome_words(prediction)),
        Line(f"  peak in {explanation.peak.phase.value}: {', '.join(rungs)}"),
        Line(""),
        *remedies(explanation, verbose=verbose),
        Line(""),
        *answer.of_each_gpu(prediction),
        *answer.of_each_rank(prediction),
        Line("Alive at the peak", Kind.SECTION),
        contents(explanation.peak, top, verbose=verbose),
        Line("Peaks of the other phases, requested", Kind.SECTION),
        *(Line(_summarize_moment(moment), Kind.ITEM) for moment in explanation.others),
        *([Line(_summarize_moment(end, "at end"), Kind.ITEM)] if (end := explanation.end) else []),
        Line(""),
        *_tabulate_layers(explanation.layers if verbose else ()),
    ]


def contents(
    moment: PeakContents, top: int, more: str = " (--top {} shows them)", *, verbose: bool = True
) -> Table:
    """Return a table of the groups alive at a moment, the ``top`` largest one by one.

    ``more`` says how to see all, of which it gets the number; ``verbose``: name the module whose
    backward frees each.
    """
    whole, rest = moment.requested, moment.groups[top:]
    unit = unit_for(whole)
    small = [sum(group.bytes for group in rest)] if rest else []
    parts = [*(group.bytes for group in moment.groups[:top]), *small]
    figures = list(zip(sizes(parts, unit), rows.shares(parts), strict=True))
    body: list[tuple[Cell, ...]] = [
        (
            *(*figure, str(group.count), STYLES[group.component].words),
            (_name_group(group), group.kept if verbose else _UNTIL.sub(r"\1", group.kept)),
        )
        for group, figure in zip(moment.groups[:top], figures, strict=False)
    ]
    if rest:
        count = sum(group.count for group in rest)
        left = f"{len(rest)} more kinds{more.format(len(moment.groups))}"
        body.append((*figures[-1], str(count), "", left))
    everything = str(sum(group.count for group in moment.groups))
    body.append((Size(whole, unit), "100.0%", everything, "requested", ""))
    return Table(
        head=(unit.name, "share", "n", "component", "tensor, and what keeps it"),
        rows=body,
        words=(3, 4),
        strong=(len(body) - 1,),
    )


def _tabulate_layers(kinds: Sequence[LayerKind]) -> Iterator[Block]:
    """Yield a table of a quantized base model's bytes per layer."""
    if not kinds:
        return
    body: list[tuple[Cell, ...]] = [
        (
            (kind.name, " x ".join(map(str, kind.shape))),
            str(kind.count),
            f"{kind.tensors[0].bytes:,} {kind.tensors[0].dtype}",
            ", ".join(f"{held.name} {held.bytes:,}" for held in kind.tensors[1:]) or "none",
            f"{kind.per_weight:.4f}",
        )
        for kind in kinds
    ]
    yield Line("Layers of the base model, bytes per layer", Kind.SECTION)
    yield Table(head=("layer", "n", "weight", "constants", "bytes/param"), rows=body, words=(0, 3))
    yield Line("")


def remedies(explanation: Explanation, *, verbose: bool = True) -> Iterator[Block]:
    """Yield the plan that fits a limit, then a table of each remedy's saving and cost."""
    before, rungs = explanation.figures, _compared_rungs(explanation)
    if explanation.search is not None:
        yield from search_lines(explanation.search, before)
        yield Line("")
    tried = [one for one in explanation.trials if one.error is None]
    if not verbose:
        tried = [one for one in tried if (one.saving(before, rungs[-1]) or 0) > 0][:HELPFUL]
    if tried:
        more = "" if verbose else "; -v: all that were tried"
        yield Line(f"Each remedy alone, estimated in full{more}", Kind.SECTION)
        unit = unit_for(max(getattr(before.peak, rung) or 0 for rung in rungs))
        yield Table(
            head=(*(f"{rung} {unit.name}" for rung in rungs), "FLOPs", "remedy, and its cost"),
            rows=[
                (
                    *(_format_change(one.saving(before, rung), unit) for rung in rungs),
                    _format_extra_flops(one.extra_flops(before)),
                    (one.remedy.title, one.remedy.cost),
                )
                for one in tried
            ],
            words=(len(rungs) + 1,),
        )
    for one in explanation.trials if verbose else ():
        if one.error is not None:
            yield Line(f" not estimated: {one.remedy.title}: {one.error}")
    if explanation.in_the_code:
        yield Line("Changes of the script, not estimated", Kind.SECTION)
        yield from (Line(f" {words}", Kind.ITEM) for words in explanation.in_the_code)
    sources: dict[str, list[str]] = {}
    for one in tried if verbose else ():
        sources.setdefault(one.remedy.source, []).append(one.remedy.key)
    for source, keys in sources.items():
        yield Line(f"source, {', '.join(keys)}: {source}", Kind.NOTE)


def row_words(explanation: Explanation) -> Iterator[str]:
    """Yield the lines known so far: verdict, plan that fits, saving of each remedy."""
    yield answer.headline(explanation.prediction).text
    if explanation.search is not None:
        yield search_lines(explanation.search, explanation.figures)[0].text
    yield from (_summarize_trial(trial, explanation) for trial in explanation.trials)


def _summarize_trial(trial: Trial, explanation: Explanation) -> str:
    """Return the saving of one remedy in a line."""
    if trial.error is not None:
        return f"{trial.remedy.title}: not estimated: {trial.error}"
    rung = _compared_rungs(explanation)[-1]
    unit = unit_for(getattr(explanation.figures.peak, rung) or 0)
    change = _format_change(trial.saving(explanation.figures, rung), unit)
    return f"{trial.remedy.title}: {change} {unit.name} {rung}"


_UNTIL = re.compile(r"(until \w+) in .*")
"""The backward that frees a storage, and the module that it belongs to."""


def _name_group(group: Group) -> str:
    """Return a group's module, operator, dtype and code line in one text."""
    parts = (group.module, group.op, group.dtype, f"at {group.line}" if group.line else "")
    # Of most steps no lines are known.
    other = "the update" if group.kept == "temporary inside step" else "the loss"
    other = "later steps" if group.component is Component.HELD else other
    return " ".join(filter(None, parts)) or other


def _summarize_moment(moment: PeakContents, name: str = "") -> str:
    """Return a phase's peak in one line: requested bytes and its largest components."""
    largest = sorted(moment.components.items(), key=lambda item: -item[1])[:3]
    parts = [f"{STYLES[name].words} {format_bytes(size)}" for name, size in largest]
    return f" {name or moment.phase.value:9} {format_mib(moment.requested):>12}  {', '.join(parts)}"


def _compared_rungs(explanation: Explanation) -> tuple[str, ...]:
    """Return the names of the memory levels on which remedies are compared."""
    has_allocator = explanation.prediction.peak.allocated is not None
    return ("allocated", "reserved") if has_allocator else ("requested",)


def search_lines(search: Search, before: Figures) -> list[Line]:
    """Return lines on the cheapest plan under a limit, its size and its command."""
    rung = search.rung.replace("_", " ")
    high = " (with the largest CUDA context)" if search.rung == "process_used" else ""
    count = f"{len(search.trials)} plans estimated"
    if search.ruled_out:
        count += f", {search.ruled_out} ruled out without a run"
    limit = f"{format_bytes(search.limit)} of {rung}{high}"
    best = search.best
    if best is None or best.figures is None:
        advice = "Try a smaller model, or fewer tokens."
        return [
            Line(f"No change that was tried fits under {limit}: {count}. {advice}", Kind.SUMMARY)
        ]
    size = format_bytes(best.figures.needed_under(search.limit))
    if not best.remedies:
        return [Line(f"Under {limit}: the plan fits as it is, with {size}.", Kind.SUMMARY)]
    return [
        Line(f"Under {limit}, cheapest first: {', '.join(map(str, best.remedies))}", Kind.SUMMARY),
        Line(f"  needs {size}, FLOPs {_format_extra_flops(best.extra_flops(before))} ({count})"),
        Line(f"  memcalc estimate {options(best.figures.plan)}", Kind.COMMAND),
    ]


def _format_extra_flops(more: float | None) -> str:
    if more is None:
        return "n/a"
    return f"{more:+.1%}" if more else "same"


def _format_change(saved: int | None, unit: Unit) -> str:
    """Return a saving as the figure's signed change: a saving is negative."""
    if saved is None:
        return "n/a"
    written = f"{abs(saved) / unit.bytes:,.1f}"
    return "0" if written == "0.0" else f"{'-' if saved > 0 else '+'}{written}"


def difference_blocks(
    found: Difference, top: int, more: str = " (--top {} shows them)"
) -> Iterator[Block]:
    """Yield a difference of two answers: headline, settings, tables of changes.

    ``more``: as for ``contents``.
    """
    yield Line(_write_difference_headline(found), Kind.HEADING)
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
    unit = unit_for(max(c.before or c.now or 0 for c in found.rungs))
    yield Line("")
    yield _tabulate_changes("at the peak", found.components, unit)
    yield _tabulate_changes("ladder", found.rungs, unit)
    yield _tabulate_changes("peak of the phase", found.phases, unit)
    if found.kinds:
        yield _tabulate_changes("kind of storage", found.kinds[:top], unit)
        if len(found.kinds) > top:
            yield Line(f"{len(found.kinds) - top} more kinds{more.format(len(found.kinds))}")


def _write_difference_headline(found: Difference) -> str:
    if found.same:
        return "no figure changed"
    rung = next(c for c in reversed(found.rungs) if c.by is not None)
    name = rung.name.replace("_", " ")
    largest = found.components[0]
    name_of_it = largest.name.replace("_", " ")
    why = f"; most of it {name_of_it} ({signed_bytes(largest.by)})" if largest.by else ""
    return f"{name} {signed_bytes(rung.by) if rung.by else 'unchanged'}{why}"


def _tabulate_changes(title: str, changes: Sequence[Change], unit: Unit) -> Table:
    body: list[tuple[Cell, ...]] = []
    for change in changes:
        if change.before == change.now and not change.before:
            continue
        name = change.name if ":" in change.name else change.name.replace("_", " ")
        share = f" ({change.by / change.before:+.1%})" if change.before and change.by else ""
        by = "n/a" if change.by is None else "same"
        if change.by:
            by = f"{signed_bytes(change.by)}{share}"
        body.append((name, size_or(change.before, unit), size_or(change.now, unit), by))
    return Table(head=(title, f"before {unit.name}", f"now {unit.name}", "change"), rows=body)
