"""Explains a plan: one run of it, and one of each change that is tried; its part of a report."""

import contextlib
import linecache
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.advice.explain.layers import layers
from memcalc.advice.explain.peak import at_end, moments
from memcalc.advice.explain.records import Explanation, PeakContents
from memcalc.advice.explain.timeline import Timeline, timeline
from memcalc.advice.remedies import rows
from memcalc.advice.remedies.records import Remedy, Trial, figures, fit_goal, limit_goal
from memcalc.advice.remedies.search import advise, candidates
from memcalc.advice.remedies.trials import Trials, trace_before
from memcalc.catalog.plan import make, to_simulate
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers, replay
from memcalc.estimation.engine import engine
from memcalc.estimation.kept import Traced, may_run_again
from memcalc.estimation.question import find_user_code
from memcalc.records.fields import name_settings, version_changes
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.units import format_bytes, parse_bytes

_BESIDE = 2
"""Remedies that are tried beside the trace: a run that keeps its events takes twice as long."""
_FIGURES = ("peak", "phases", "components")


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in a report."""

    prediction: Prediction
    peak: PeakContents | None = None
    line: Timeline | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know, such as that the trace is newer than the figures."""


def chapter(traced: Traced, *, depth: int | None = None) -> Chapter:
    """Return a traced plan's part of a report: its prediction, peak contents and timeline."""
    prediction, plan = traced.prediction, traced.prediction.plan
    return Chapter(
        prediction=prediction,
        peak=moments(traced.trace, plan, depth=depth)[prediction.peak.phase],
        line=timeline(traced.trace, plan, engine.player(plan)),
    )


def chapter_of_saved(saved: Prediction, answers: Answers, *, depth: int | None = None) -> Chapter:
    """Return a saved prediction's part of a report, with a cached or a newly made trace.

    The figures stay the saved ones; where the trace says something else, a note says so, and the
    parts that need the trace are left out.
    """
    found: Chapter | str
    # Of a command the trace is kept; it is never run again.
    code = find_user_code(saved.plan) if not saved.plan.command else None
    if saved.method != "trace":
        found = "the analytic method has no timeline"
    elif code is not None:
        found = f"no timeline: {code} is Python code, and a file does not run code"
    else:
        found = _retrace(saved, answers, depth)
    return Chapter(prediction=saved, notes=(found,)) if isinstance(found, str) else found


def _retrace(saved: Prediction, answers: Answers, depth: int | None) -> Chapter | str:
    """Trace the plan of a saved prediction: its chapter, or a sentence if the figures differ."""
    try:
        answer = answers.trace(saved.plan)
    except MemcalcError as error:
        return f"no timeline: {error}"
    fresh = answer.prediction
    versions = "; ".join(version_changes(saved.versions, fresh.versions))
    if any(getattr(fresh, name) != getattr(saved, name) for name in _FIGURES):
        why = f" ({versions})" if versions else ""
        return f"no timeline: a new run of this plan gives other figures than the saved ones{why}"
    others = f", with other versions ({versions})" if versions else ""
    note = f"the timeline is from a new run{others}; its figures equal the saved ones"
    notes = () if saved.plan.command else (note,)
    return replace(chapter(answer, depth=depth), prediction=saved, notes=notes)


@name_settings
def explain(
    model: str | Plan,
    *,
    under: str | int | None = None,
    depth: int | None = None,
    remedies: bool = True,
    use_cache: bool = True,
    **settings: Any,
) -> Explanation:
    """Say what is alive at the peak of a training run, why, and what would need less.

    Args:
        model: as for ``memcalc.estimate``.
        under: bytes, or a size such as ``"15 GiB"``: find the cheapest plan within this limit.
            Where a GPU is named and the plan does not fit it, its memory is the limit.
        depth: cut modules' paths to this number of names.
        remedies: estimate changed plans.
        use_cache: keep and reuse traces on disk.
        **settings: fields of ``Plan``.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: the plan cannot be traced.
    """
    limit = parse_bytes(under) if isinstance(under, str) else under
    plan = make({"model": model, **settings})
    return explain_plan(plan, depth=depth, remedies=remedies, under=limit, use_cache=use_cache)


def explain_plan(
    plan: Plan,
    *,
    depth: int | None = None,
    remedies: bool = True,
    under: int | None = None,
    use_cache: bool = True,
    most: int | None = None,
    seen: Callable[[Explanation], None] = lambda so_far: None,
    saved: Sequence[Traced] = (),
) -> Explanation:
    """Return what is alive at a plan's memory peak, why, and how much each remedy saves.

    Args:
        plan: the plan to explain.
        depth: as for ``explain``.
        remedies: as for ``explain``.
        under: bytes, as for ``explain``.
        use_cache: as for ``explain``.
        most: stop after this many remedies that help, cheapest first; None: try all.
        seen: called whenever more is known.
        saved: runs of commands, of which this may be one.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: the plan cannot be traced.
    """
    for name, least in (("depth", depth), ("under", under)):
        if least is not None and least < 1:
            raise UsageError(f"{name} = {least} leaves nothing: type 1 or more.")
    answers = Answers(use_cache=use_cache, workers=None, counted=True, figures=True, saved=saved)
    traced = trace_before(plan, answers, _first_remedies(plan) if remedies else ())
    found = _describe_peak(traced, depth)
    seen(found)
    if plan.command:
        if not remedies:
            return found
        code = tuple(changes_of_code(found.peak, found.prediction.plan))
        return replace(found, trials=tuple(try_on_script(traced)), in_the_code=code)
    goal = limit_goal(under, found.figures) if under is not None else None
    if goal is None and remedies:
        goal = fit_goal(found.figures)
    tried, search = advise(
        Trials(traced, answers),
        goal,
        alone=remedies,
        most=most,
        seen=lambda tried, search: seen(replace(found, trials=tried, search=search)),
    )
    return replace(found, trials=tried, search=search)


def _first_remedies(plan: Plan) -> list[Remedy]:
    """Return a few remedies to estimate while the plan is traced; none if it is invalid.

    The free ones save too little for most plans, or are replays.
    """
    with contextlib.suppress(UsageError):
        able = [one for one in candidates(plan) if one.unfit is None]
        return [*(one for one in able if one.rank), *able][:_BESIDE]
    return []


def _describe_peak(traced: Traced, depth: int | None) -> Explanation:
    """Return the explanation of a traced plan before any remedy is tried."""
    by_phase = moments(traced.trace, traced.prediction.plan, depth=depth)
    peak = by_phase.pop(traced.prediction.peak.phase)
    return Explanation(
        prediction=traced.prediction,
        peak=peak,
        others=tuple(sorted(by_phase.values(), key=lambda moment: -moment.requested)),
        end=at_end(traced.trace, traced.prediction.plan, depth=depth),
        layers=layers(traced.trace.inventory),
    )


def try_on_script(traced: Traced) -> Iterator[Trial]:
    """Yield trials of a script: run it with half the batch, replay with expandable segments."""
    plan = traced.prediction.plan
    yield from _try_half_batch(plan)
    for remedy in rows.expandable(plan):
        found = replay(traced, replace(plan, **dict(remedy.changes)))
        if isinstance(found, Prediction):
            yield Trial(remedies=(remedy,), figures=figures(found))


_BATCH = re.compile(
    r"(?!.*(?:eval|val|test))(?:[\w.-]*batch[_-]?size|--?bs|-b|--batch)(=|$)", re.IGNORECASE
)
"""An argument of a training script that holds the samples of a step."""
_SAID = (
    (
        re.compile("softmax"),
        "if this is attention, scaled_dot_product_attention of torch.nn.functional keeps no scores",
    ),
    (
        re.compile("cross_entropy|CrossEntropy|nll_loss"),
        "the loss keeps logits of all tokens: compute it in pieces, each under torch.utils."
        "checkpoint, or with a fused kernel such as Liger's",
    ),
    (
        re.compile(r"\.float\(\)|torch\.float32"),
        "a copy in fp32: leave it out, or convert a part of the tokens at a time",
    ),
)
"""Patterns of a line of code, each with what would need less."""
_WORTH = 0.05
"""Share of the peak from which a change of code is named."""


def changes_of_code(peak: PeakContents, plan: Plan) -> Iterator[str]:
    """Yield sentences on lines of the user's script that could be changed to save memory."""
    words = shlex.split(plan.command or "")
    held, lines = Counter[str](), Counter[str]()
    for group in peak.groups:
        if group.kept.startswith("held by") and group.line:
            held[group.line] += group.bytes
        elif group.line:
            lines[group.line] += group.bytes
    for line, size in held.most_common():
        if size > _WORTH * peak.requested:
            yield (
                f"{format_bytes(size)} from {line} outlive backward: a variable holds them, so "
                "del it once the loss is known"
            )
    beside = next((Path(word).parent for word in words if word.endswith(".py")), Path())
    for line, size in lines.most_common():
        if size <= _WORTH * peak.requested:
            break
        # Of the script, or of a file beside it; empty: it is not there any more.
        file, _, number = line.rpartition(":")
        code = linecache.getline(str(beside / file), int(number)) if number.isdecimal() else ""
        said = next((less for pattern, less in _SAID if pattern.search(code)), None)
        if said is not None:
            yield f"{format_bytes(size)} from {line}: {said}"


def _try_half_batch(plan: Plan) -> Iterator[Trial]:
    """Run the script again, silently, with half the batch, if an argument sets the batch.

    A command of a saved answer is not run: it may be any.
    """
    from memcalc.script.simulate import simulate

    words = shlex.split(plan.command or "")
    found = _halve_batch_argument(words)
    if found is None or not may_run_again(plan):
        return
    at, argument = found
    changed = replace(
        plan, command=shlex.join([*words[:at], *argument, *words[at + len(argument) :]])
    )
    remedy = Remedy(
        key="half the batch",
        title=f"half the batch ({' '.join(argument)})",
        changes=(),
        cost="fewer samples per step; accumulate gradients over two for the same update",
        source=f"the script ran again: {to_simulate(changed)}",
        rank=1,
    )
    trial = Trial(remedies=(remedy,))
    try:
        run = simulate(changed, quiet=True)
        if run.traced is None or (run.ending.code and not run.ending.out_of_memory):
            trial = replace(trial, error=f"the script ended with exit code {run.ending.code}")
        else:
            trial = replace(trial, figures=figures(run.traced.prediction))
    except MemcalcError as error:
        trial = replace(trial, error=str(error))
    yield trial


def _halve_batch_argument(words: list[str]) -> tuple[int, list[str]] | None:
    """Return the index of the batch argument in a command, and its words with half the value.

    Returns:
        None if no argument is the batch, or it is one sample.
    """
    for at, word in enumerate(words):
        found = _BATCH.match(word)
        if found is None:
            continue
        value = word[found.end() :] if found[1] else "".join(words[at + 1 : at + 2])
        if value.isdecimal() and int(value) > 1:
            less = str(int(value) // 2)
            return at, [word[: found.end()] + less] if found[1] else [word, less]
    return None
