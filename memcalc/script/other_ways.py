"""Runs a program again where numbers that are not computed decide, to see other branches."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from memcalc.engine.source_lines import listed
from memcalc.errors import EstimateError
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import DECIDES
from memcalc.script.answer import Simulated
from memcalc.units import format_bytes

Again = Callable[[str], Simulated]
_FULL = "runs out of memory"
_MOST_WAYS = 3
"""Lines whose decisions are tried the other way: each takes one more run."""
_MOST_SECONDS = 120.0
"""Seconds for all these runs."""


def both_ways(found: Simulated, again: Again, seconds: float) -> Simulated:
    """Run again with the decisions of one line after another taken the other way.

    Args:
        found: the run that was shown.
        again: runs it with the decisions of a line taken the other way.
        seconds: that a run takes.

    Returns:
        The answer of the run that made most optimizer steps: the first, unless decisions kept it
        from training. An assumption tells what the others need. It is tight at most if one of them
        does not fit.
    """
    if found.traced is None or found.ending.code or not found.ending.decides:
        return found
    lines = found.ending.decides
    tried = lines[: min(_MOST_WAYS, int(_MOST_SECONDS / max(seconds, 0.1)))]
    ways = [(line, *_other_way(again, line)) for line in tried]
    chosen = max((found, *(way for _, way, _ in ways if way)), key=lambda one: one.ending.steps)
    others = [
        f"{line} ({outcome or _difference(way, chosen)})"
        for line, way, outcome in ways
        if way is not chosen
    ]
    said = f"{DECIDES} {listed(lines)}"
    if chosen is not found:
        said += "; the figures are those of another branch, which trains more, than the one shown"
    if others:
        said += f"; the other way at {', '.join(others)}"
    if len(tried) < len(lines):
        said += f"; not tried the other way: {listed(lines[len(tried) :])}"
    fails = any(outcome == _FULL or _fails(way) for _, way, outcome in ways)
    return _assuming(replace(chosen, ending=found.ending), said, tight=fails)


def _fails(way: Simulated | None) -> bool:
    fit = way.traced.prediction.fit if way is not None and way.traced is not None else None
    return fit is not None and fit.verdict is FitVerdict.DOES_NOT_FIT


def _other_way(again: Again, line: str) -> tuple[Simulated | None, str]:
    """Return the answer of the other way, or None and the reason."""
    try:
        found = again(line)
    except EstimateError as error:
        return None, str(error)
    if found.ending.out_of_memory:
        return None, _FULL
    if found.ending.code or found.traced is None:
        return None, f"ends with exit code {found.ending.code}"
    return found, ""


def _difference(way: Simulated | None, chosen: Simulated) -> str:
    assert way is not None
    more = _reserved(way) - _reserved(chosen)
    return (
        f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "the same peak"
    )


def _reserved(found: Simulated) -> int:
    """Return what a run reserved at its peak, in bytes."""
    assert found.traced is not None
    return found.traced.prediction.peak.reserved or 0


def _assuming(found: Simulated, said: str, *, tight: bool) -> Simulated:
    """Return an answer with an assumption before all others."""
    assert found.traced is not None
    prediction = found.traced.prediction
    told = replace(prediction, assumptions=(said, *prediction.assumptions))
    if tight and told.fit is not None and told.fit.verdict is FitVerdict.FITS:
        told = replace(told, fit=replace(told.fit, verdict=FitVerdict.TIGHT))
    return replace(found, traced=replace(found.traced, prediction=told))
