"""The words all formats share: one sentence for a budget, one for a report."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

from memcalc import untrusted_text
from memcalc.budgets.records import Report, Rule, Status, Verdict
from memcalc.units import GIB, KIB, MIB

STATUS = {
    Status.OVER: "over",
    Status.UNKNOWN: "unknown",
    Status.HOLDS: "ok",
}


_UNITS = (("GiB", GIB, 2), ("MiB", MIB, 1), ("KiB", KIB, 1), ("B", 1, 0))
_LARGE = 100 * GIB


def writer(verdict: Verdict) -> Callable[[int], str]:
    """How all figures of one verdict are written.

    MiB, or GiB from 100 GiB on, or a smaller unit where the difference would be lost in rounding;
    bytes per parameter where the limit is one.
    """
    apart = [abs(d) for d in (verdict.difference, change(verdict)) if d]
    count = verdict.parameters
    if count:
        places = next(n for n in range(2, 20) if all(d * 10**n * 2 >= count for d in apart))
        return functools.partial(_write, unit="B/param", factor=count, decimals=places)
    known = [abs(size) for size in (verdict.value, verdict.limit, verdict.before) if size]
    largest = max(known, default=0)
    for unit, factor, decimals in _UNITS:
        seen = all(d * 10**decimals * 2 >= factor for d in apart)
        if seen and largest >= (_LARGE if unit == "GiB" else factor):
            return functools.partial(_write, unit=unit, factor=factor, decimals=decimals)
    return functools.partial(_write, unit="B", factor=1, decimals=0)


def _write(size: int, *, unit: str, factor: int, decimals: int) -> str:
    return f"{size / factor:,.{decimals}f} {unit}"


def signed(size: int, write: Callable[[int], str]) -> str:
    """With a plus sign where it is not negative."""
    return write(size) if size < 0 else f"+{write(size)}"


def change(verdict: Verdict) -> int | None:
    """Bytes more than in the baseline."""
    if verdict.value is None or verdict.before is None:
        return None
    return verdict.value - verdict.before


def comparison(verdict: Verdict) -> tuple[str, str, str]:
    """Value, limit with its sign, and difference, all in one unit; empty where not known."""
    write = writer(verdict)
    value = write(verdict.value) if verdict.value is not None else ""
    if verdict.limit is None or verdict.difference is None:
        return value, "", ""
    sign = ">" if verdict.difference > 0 else "<="
    return value, f"{sign} {write(verdict.limit)}", signed(verdict.difference, write)


def before_and_change(verdict: Verdict) -> tuple[str, str]:
    """The baseline's figure and what was added, in the unit of the rest."""
    write, added = writer(verdict), change(verdict)
    if verdict.before is None or added is None:
        return "", ""
    share = f" ({added / verdict.before:+.1%})" if verdict.before and added else ""
    return write(verdict.before), (signed(added, write) if added else "0") + share


def limit(verdict: Verdict) -> str:
    """The limit in the unit of the rest, and how it was written where that says more."""
    budget = verdict.budget
    shown = writer(verdict)(verdict.limit) if verdict.limit is not None else ""
    if budget.rule is Rule.GROWTH and budget.amount is not None:
        growth = f"+{budget.amount.text}"
        return f"{shown} ({growth})" if shown else growth
    return shown or (budget.amount.text if budget.amount is not None else str(budget.gpu))


def why(verdict: Verdict) -> str:
    """The reason, what would bring it under, and where an estimate stands in."""
    parts = [verdict.reason]
    if verdict.budget.margin is not None and verdict.limit is not None:
        parts.append(f"{verdict.budget.margin.text} margin kept")
    if verdict.remedy:
        parts.append(verdict.remedy)
    return one_line("; ".join(part for part in parts if part))


def one_line(text: str) -> str:
    """Harmless and without runs of spaces: reasons quote what other code says."""
    return " ".join(untrusted_text.line(text).split())


def sentence(verdict: Verdict) -> str:
    """Everything about one budget, for places that have one text."""
    value, against, difference = comparison(verdict)
    figures = " ".join(part for part in (value, against) if part)
    apart = f" ({difference})" if difference and verdict.difference else ""
    told = "could not tell" if verdict.status is Status.UNKNOWN else ""
    parts = [part for part in (told, f"{figures}{apart}", why(verdict)) if part]
    return untrusted_text.line(f"{verdict.budget.run}: {verdict.budget.name}: {': '.join(parts)}")


def in_repository(file: str) -> str:
    """The path as the forge knows it: from the root of the checkout that a CI job works in."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.environ.get("CI_PROJECT_DIR")
    full = Path(file).absolute()
    return full.relative_to(root).as_posix() if root and full.is_relative_to(root) else file


def summary(report: Report) -> str:
    """How many of how many."""
    total = len(report.verdicts)
    counts = [
        (report.count(Status.OVER), "over"),
        (report.count(Status.UNKNOWN), "could not be told"),
        (report.count(Status.HOLDS), "ok"),
    ]
    told = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{total} budget{'s' * (total != 1)}: {told}"
