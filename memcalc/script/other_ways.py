"""Runs a program again where numbers that are not computed decide, to see other branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memcalc.engine.source_lines import join_lines
from memcalc.errors import EstimateError
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import UNCOMPUTED
from memcalc.script.answer import Simulated
from memcalc.script.records import Way
from memcalc.units import format_bytes

Again = Callable[[Way], Simulated]
_FULL = "runs out of memory"
_MOST_WAYS = 3
"""Lines whose decisions are tried the other way: each takes one more run."""
_MOST_SECONDS = 120.0
"""Seconds for all these runs."""
_LONGER = 4
"""How many times as many steps they make: a branch may change what later steps take."""
_SCALES = {"larger": 100.0, "smaller": 0.01}
"""Numbers of runs that show what is decided where nobody sees it."""
_SAME = "the same peak"


class _Tried(NamedTuple):
    """A further run."""

    found: Simulated | None
    outcome: str
    """Why there is no answer; empty: there is one."""


def both_ways(found: Simulated, again: Again, seconds: float) -> Simulated:
    """Run again with unknown branches of one line after another inverted; note what that takes.

    Decisions by numbers on the host are not seen: run with larger and smaller ones.

    Args:
        found: the run that was shown.
        again: runs it another way.
        seconds: that a run takes.

    Returns:
        The answer of the run that made most optimizer steps: the first, unless decisions kept it
        from training. An assumption tells what the others need. It is tight at most if one of them
        does not fit.
    """
    lines, escapes = tuple(found.ending.decides), found.ending.escapes
    if found.traced is None or found.ending.code or not (lines or escapes):
        return found
    affordable = int(_MOST_SECONDS / max(seconds, 0.1))
    asked = lines[: min(_MOST_WAYS, affordable)]
    further = affordable >= 2 * len(asked)
    ways = {line: _reverse(again, found.ending.decides, line, further=further) for line in asked}
    # Larger and smaller numbers together show whether the size matters; one alone does not.
    scales = _SCALES if escapes and affordable >= len(ways) + len(_SCALES) else {}
    scaled = {name: _run_way(again, Way(scale=scale)) for name, scale in scales.items()}
    tried = (*ways.values(), *scaled.values())
    chosen = found
    if not found.ending.stopped:
        runs = (found, *(one.found for one in tried if one.found is not None))
        chosen = max(runs, key=lambda one: one.ending.steps)
    said = []
    if lines:
        said.append(_say_decisions(lines, ways, chosen))
    if chosen is not found:
        said[-1:] = [f"{said[-1]}; {_ANOTHER}"] if said else [_ANOTHER]
    if escapes:
        said.append(_say_escapes(escapes, scaled, chosen))
    fails = any(one.outcome == _FULL or _does_not_fit(one.found) for one in tried)
    return _add_assumptions(replace(chosen, ending=found.ending), said, tight=fails)


_ANOTHER = "the figures are those of another branch, which trains more, than the one shown"


def _say_decisions(lines: Sequence[str], ways: Mapping[str, _Tried], chosen: Simulated) -> str:
    """Return a sentence on lines with unknown branches and the memory of the other branch."""
    others = [
        f"{line} ({_describe_difference(one, chosen)})"
        for line, one in ways.items()
        if one.found is not chosen
    ]
    said = f"{UNCOMPUTED} decide at {join_lines(lines)}"
    if others:
        steps = max((one.found.ending.steps for one in ways.values() if one.found), default=0)
        within = f" within {steps} steps" if steps else ""
        said += f"; the other way{within} at {', '.join(others)}"
    if len(ways) < len(lines):
        said += f"; not tried the other way: {join_lines(lines[len(ways) :])}"
    return said


def _say_escapes(lines: Sequence[str], scaled: Mapping[str, _Tried], chosen: Simulated) -> str:
    """Return a sentence on lines that read unknown values, and if their size matters."""
    found = {name: _describe_difference(one, chosen) for name, one in scaled.items()}
    said = f"{UNCOMPUTED} go to the host at {join_lines(lines)}"
    if scaled and {*found.values()} == {_SAME}:
        return f"{said}; larger and smaller ones take as much"
    said += ", where what they decide is not seen"
    return ": ".join(
        filter(None, (said, ", ".join(f"{name} ones ({how})" for name, how in found.items())))
    )


def _does_not_fit(way: Simulated | None) -> bool:
    fit = way.traced.prediction.fit if way is not None and way.traced is not None else None
    return fit is not None and fit.verdict is FitVerdict.DOES_NOT_FIT


def _run_way(again: Again, way: Way) -> _Tried:
    """Run a program another way; return that run, or the reason why it has no answer."""
    try:
        found = again(way)
    except EstimateError as error:
        return _Tried(None, str(error))
    if found.ending.out_of_memory:
        return _Tried(None, _FULL)
    if found.ending.code or found.traced is None:
        return _Tried(None, f"ends with exit code {found.ending.code}")
    return _Tried(found, "")


def _reverse(again: Again, decides: dict[str, bool], line: str, *, further: bool) -> _Tried:
    """Run a program with the decisions of a line reversed.

    Lines that decide only in that run are reversed in another one (``further``): a mask that keeps
    nothing hides what a guard before it lets through.

    Returns:
        The run that takes more.
    """
    opposite = {line: decides[line]}
    tried = _run_way(again, Way(opposite=opposite, longer=_LONGER))
    new = tried.found.ending.decides if tried.found is not None and further else {}
    if new.keys() <= decides.keys():
        return tried
    more = {name: stays for name, stays in new.items() if name not in decides}
    other = _run_way(again, Way(opposite=opposite | more, longer=_LONGER))
    if other.found is None:
        return other if other.outcome == _FULL else tried
    return max(tried, other, key=lambda one: _find_peak(one.found) if one.found else 0)


def _describe_difference(way: _Tried, chosen: Simulated) -> str:
    """Say how much more or less memory another run reserves than the chosen one."""
    if way.found is None:
        return way.outcome
    if way.found is chosen:
        return "those shown"
    more = _find_peak(way.found) - _find_peak(chosen)
    return f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else _SAME


def _find_peak(found: Simulated) -> int:
    """Return the peak of reserved bytes of a run."""
    assert found.traced is not None
    return found.traced.prediction.peak.reserved or 0


def _add_assumptions(found: Simulated, said: Sequence[str], *, tight: bool) -> Simulated:
    """Put sentences first in a run's assumptions; ``tight``: its verdict is at most that."""
    assert found.traced is not None
    prediction = found.traced.prediction
    told = replace(prediction, assumptions=(*said, *prediction.assumptions))
    if tight and told.fit is not None and told.fit.verdict is FitVerdict.FITS:
        told = replace(told, fit=replace(told.fit, verdict=FitVerdict.TIGHT))
    return replace(found, traced=replace(found.traced, prediction=told))
