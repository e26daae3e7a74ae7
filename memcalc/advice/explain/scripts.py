"""What would need less of a user's own script: settings that are tried, and changes of its code."""

from __future__ import annotations

import linecache
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from memcalc.advice.explain.records import PeakContents
from memcalc.advice.remedies.records import Option, Remedy, Trial, figures
from memcalc.advice.remedies.rows import free
from memcalc.allocator.replay import replay
from memcalc.catalog.plan import to_simulate
from memcalc.errors import MemcalcError
from memcalc.estimation.estimate import Traced
from memcalc.estimation.question import asked
from memcalc.estimation.replays import UNLIMITED, as_it_ran, judged, of_replay, room_of
from memcalc.records.plan import Plan
from memcalc.units import format_bytes


def remedies(traced: Traced) -> Iterator[Option]:
    """Half the batch, by running the command again; the allocator's settings, by replaying."""
    yield from _halved(traced.prediction.plan)
    before, trace = traced.prediction, traced.trace
    for remedy in free.expandable(before.plan):
        question = asked(replace(before.plan, **dict(remedy.changes)))
        found = of_replay(replay(as_it_ran(trace), question.settings, UNLIMITED), trace)
        saved = (before.peak.reserved or 0) - found.peaks.reserved
        used = before.peak.process_used
        peak = replace(
            before.peak,
            reserved=found.peaks.reserved,
            process_used=used - saved if used is not None else None,
        )
        room = room_of(question)
        # The readings of the run are those of its own settings.
        fit = judged(question, replace(trace, readings=()), room) if room is not None else None
        told = replace(figures(before), plan=question.plan, peak=peak, fit=fit)
        yield Option(remedy=remedy, trial=Trial(remedies=(remedy.key,), figures=told))


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
"""What a line of code holds, and what would need less."""
_WORTH = 0.05
"""Share of the peak from which a change of code is named."""


def in_the_code(peak: PeakContents, plan: Plan) -> Iterator[str]:
    """What the script's own code could do without, the largest first; read from its lines."""
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


def _halved(plan: Plan) -> Iterator[Option]:
    """The script with half the batch, where that is an argument of it; what it prints is not shown.

    A command whose trace is kept has run on this machine, so it may run again.
    """
    from memcalc.script.simulate import simulate

    words = shlex.split(plan.command or "")
    found = _half(words)
    if found is None:
        return
    at, argument, told = found
    changed = replace(
        plan, command=shlex.join([*words[:at], *argument, *words[at + len(argument) :]])
    )
    remedy = Remedy(
        key="half the batch",
        title=f"half the batch ({told})",
        changes=(),
        cost="fewer samples per step; accumulate gradients over two for the same update",
        source=f"the script ran again: {to_simulate(changed)}",
        rank=1,
    )
    trial = Trial(remedies=(remedy.key,), figures=None)
    try:
        run = simulate(changed, quiet=True)
        if run.traced is None or (run.ending.code and not run.ending.out_of_memory):
            trial = replace(trial, error=f"the script ended with exit code {run.ending.code}")
        else:
            trial = replace(trial, figures=figures(run.traced.prediction))
    except MemcalcError as error:
        trial = replace(trial, error=str(error))
    yield Option(remedy=remedy, trial=trial)


def _half(words: list[str]) -> tuple[int, list[str], str] | None:
    """The argument with half the batch: where it begins, its words, and how it is typed.

    ``None``: no argument is the batch, or it is one sample.
    """
    for at, word in enumerate(words):
        found = _BATCH.match(word)
        if found is None:
            continue
        value = word[found.end() :] if found[1] else "".join(words[at + 1 : at + 2])
        if value.isdecimal() and int(value) > 1:
            less = str(int(value) // 2)
            new = [word[: found.end()] + less] if found[1] else [word, less]
            return at, new, " ".join(new)
    return None
