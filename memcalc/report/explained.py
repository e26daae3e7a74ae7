"""The words and figures of an explanation, in the order people read them; for all formats."""

from __future__ import annotations

from memcalc.explanation.command import options
from memcalc.explanation.records import Explanation, Group, PeakContents
from memcalc.remedies.records import Option, Search
from memcalc.report.rows import COMPONENT_WORDS, ladder
from memcalc.units import format_bytes, format_mib


def peak_line(explanation: Explanation) -> str:
    """Where the peak is, rung by rung."""
    rungs = [f"{name} {value}" for name, value in ladder(explanation.prediction)]
    return f"Peak in {explanation.peak.phase.value}: " + ", ".join(rungs)


def group_words(group: Group) -> str:
    """What a group is: where it was made, by what, of which dtype."""
    parts = [group.module, group.op, group.dtype]
    return " ".join(part for part in parts if part) or "the loss"


def split(moment: PeakContents, top: int) -> tuple[tuple[Group, ...], int, int]:
    """The largest groups, and how many storages and bytes are left."""
    rest = moment.groups[top:]
    return moment.groups[:top], sum(g.count for g in rest), sum(g.bytes for g in rest)


def share(size: int, whole: int) -> str:
    """A part in percent."""
    return f"{size / whole:.1%}" if whole else "n/a"


def component_line(moment: PeakContents, most: int = 3) -> str:
    """The largest components of a moment."""
    ordered = sorted(moment.components.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{COMPONENT_WORDS[name]} {format_bytes(size)}" for name, size in ordered)


def option_columns(explanation: Explanation) -> tuple[str, ...]:
    """Heads of the columns of ``option_row``; all but the first and last are figures."""
    return ("remedy", *_compared(explanation), "FLOPs", "cost")


def _compared(explanation: Explanation) -> tuple[str, ...]:
    """The rungs that remedies are compared on: without an allocator there is only one."""
    has_allocator = explanation.prediction.peak.allocated is not None
    return ("allocated", "reserved") if has_allocator else ("requested",)


def option_row(explanation: Explanation, option: Option) -> tuple[str, ...]:
    """A remedy: title, savings, operations, cost."""
    before, trial = explanation.figures, option.trial
    more = trial.more_flops(before)
    return (
        option.remedy.title,
        *(_change(trial.saved(before, rung)) for rung in _compared(explanation)),
        _flops(more),
        option.remedy.cost,
    )


def failed(explanation: Explanation) -> list[str]:
    """Remedies without figures, and why."""
    return [
        f"not estimated: {option.remedy.title}: {option.trial.error}"
        for option in explanation.options
        if option.trial.error is not None
    ]


def search_lines(explanation: Explanation, search: Search) -> list[str]:
    """The plan that holds, what it needs, and how to type it."""
    from memcalc.remedies.search import needed

    rung = search.rung.replace("_", " ")
    high = " (with the high end of the context)" if search.rung == "process_used" else ""
    count = f"{len(search.trials)} plans estimated"
    limit = f"{format_bytes(search.limit)} of {rung}{high}"
    best = search.best
    if best is None or best.figures is None:
        return [f"Nothing holds under {limit}: {count}. Try a smaller model, or fewer tokens."]
    size = format_bytes(needed(best.figures))
    if not best.remedies:
        return [f"Under {limit}: the plan holds as it is, with {size}."]
    more = best.more_flops(explanation.figures)
    flops = f", FLOPs {_flops(more)}"
    return [
        f"Under {limit}, cheapest first: {', '.join(best.remedies)}",
        f"  needs {size}{flops} ({count})",
        f"  memcalc estimate {options(best.figures.plan)}",
    ]


def sources(explanation: Explanation) -> list[str]:
    """Where the statements about cost are from."""
    named: dict[str, list[str]] = {}
    for option in explanation.options:
        if option.trial.error is not None:
            continue
        named.setdefault(option.remedy.source, []).append(option.remedy.key)
    return [f"{', '.join(keys)}: {source}" for source, keys in named.items()]


def _flops(more: float | None) -> str:
    if more is None:
        return "n/a"
    return f"{more:+.1%}" if more else "same"


def _change(saved: int | None) -> str:
    """A saving as the change of the figure: less is negative."""
    if saved is None:
        return "n/a"
    return f"{'-' if saved > 0 else '+'}{format_mib(abs(saved))}" if saved else "0"
