"""Batches of varying length: a trace's exact growth, replayed batch by batch by one allocator.

A batch is as long as its longest sample. The allocator keeps what it took for the batches before,
cut to their sizes, so what it reserves depends on the order they come in. A hundred batches are
drawn, always the same ones, and three ways of training on them are compared.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.allocator.counter import Levels
from memcalc.allocator.replay import Op, replay
from memcalc.allocator.settings import AllocatorSettings
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.client import Client
from memcalc.estimation.fits import Events, device_of, judge
from memcalc.estimation.question import Asked, asked
from memcalc.estimation.replays import UNLIMITED
from memcalc.files.plain import content
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, Prediction, Varied, Way
from memcalc.records.steady import Held, partners
from memcalc.records.trace import Trace
from memcalc.records.walk import last_step
from memcalc.symbolic.evaluate import Evaluator
from memcalc.symbolic.records import Point

BATCHES = 100
_KINDS = 8
"""Formulas that are learnt at most; lengths where none holds are traced."""
_SEED = 0
FORM = "normal:MEAN,STD, uniform:A,B or a file with one length a line"
_NUMBER = r"([0-9]{1,8}(?:\.[0-9]{1,9})?)"
DRAWN = re.compile(rf"(normal|uniform):{_NUMBER},{_NUMBER}")
_LENGTH = re.compile("0*[1-9][0-9]{0,6}")


def samples(text: str, count: int, longest: int | None) -> list[int]:
    """Draw lengths, the same for the same text.

    Args:
        text: ``normal:mean,std``, ``uniform:a,b`` or the name of a file.
        count: how many.
        longest: where samples are cut.

    Raises:
        UsageError: it is none of these, or the file holds something else than lengths.
    """
    draw = random.Random(_SEED)
    form = DRAWN.fullmatch(text)
    if form is not None:
        first, second = float(form[2]), float(form[3])
        if form[1] == "uniform" and first > second:
            raise UsageError(f"--lengths {text}: the first number is the smaller one.")
        kind = draw.gauss if form[1] == "normal" else draw.uniform
        drawn = [round(kind(first, second)) for _ in range(count)]
    else:
        known = _lengths_in(Path(text))
        drawn = [draw.choice(known) for _ in range(count)]
    most = longest or max(drawn)
    return [min(max(length, 1), most) for length in drawn]


def _lengths_in(path: Path) -> list[int]:
    if not os.path.isfile(path):
        raise UsageError(f"--lengths {path} is neither {FORM}.")
    lines = content(path).decode(errors="replace").split()
    if not lines or not all(map(_LENGTH.fullmatch, lines)):
        raise UsageError(f"--lengths {path}: write one whole number of tokens a line, to 9999999.")
    return [int(line) for line in lines]


def varied(plan: Plan, text: str) -> Varied:
    """Replay a hundred batches of these lengths.

    Args:
        plan: ``seq`` is where samples are cut; ``None``: nowhere.
        text: see ``samples``.

    Raises:
        MemcalcError: the plan could not be traced, or its model takes one length only.
    """
    if plan.infers or plan.command or plan.target == "cpu" or plan.devices > 1:
        raise UsageError("--lengths is for training on one GPU: leave it out, or the rest.")
    if plan.inputs:
        raise UsageError(
            "--lengths is of batches that memcalc makes, and --input describes them: leave one out."
        )
    question = asked(plan)
    drawn = samples(text, BATCHES * plan.batch, plan.seq)
    as_drawn = [max(part) for part in _parts(drawn, plan.batch)]
    bucketed = [max(part) for part in _parts(sorted(drawn), plan.batch)]
    random.Random(_SEED).shuffle(bucketed)
    traces = _traces(question, {*as_drawn, *bucketed})
    growing = replace(question.settings, expandable=True)
    ways = (
        _way("in the order drawn", as_drawn, traces, question.settings),
        _way("bucketed by length", bucketed, traces, question.settings),
        _way("expandable segments", as_drawn, traces, growing),
    )
    alone = [
        replay(sequence([traces[seq]] * 2), question.settings, UNLIMITED).peaks.allocated
        for seq in (min(as_drawn), max(as_drawn))
    ]
    peaks = replay(sequence([traces[seq] for seq in as_drawn]), question.settings, UNLIMITED).peaks
    return Varied(
        fit=_fit(question, lambda: sequence([traces[seq] for seq in as_drawn]), peaks),
        lengths=text,
        batches=BATCHES,
        longest=max(drawn),
        least=alone[0],
        most=alone[1],
        ways=ways,
    )


def over_batches(answer: Prediction, found: Varied) -> Prediction:
    """An estimate whose peak and fit are those of all the batches, in the order drawn.

    Args:
        answer: of the plan, at the length that it names.
        found: what the batches take.
    """
    drawn, peak = found.ways[0], answer.peak
    more = drawn.reserved - (peak.reserved or 0)
    used = peak.process_used
    return replace(
        answer,
        varied=found,
        fit=found.fit,
        peak=replace(
            peak,
            requested=drawn.requested,
            allocated=drawn.allocated,
            reserved=drawn.reserved,
            process_used=None if used is None else used + more,
        ),
    )


def _fit(question: Asked, events: Events, peaks: Levels) -> Fit | None:
    if question.gpu is None:
        return None
    return judge(events, question.settings, device_of(question.gpu, plan=question.plan), peaks)


def _parts(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _way(
    name: str, seqs: Sequence[int], traces: dict[int, Trace], settings: AllocatorSettings
) -> Way:
    peaks = replay(sequence([traces[seq] for seq in seqs]), settings, UNLIMITED).peaks
    return Way(
        name=name,
        requested=peaks.requested,
        allocated=peaks.allocated,
        reserved=peaks.reserved,
        shortest=min(seqs),
        longest=max(seqs),
    )


def _traces(question: Asked, seqs: set[int]) -> dict[int, Trace]:
    """A trace of each length: by formulas where some that were learnt hold, else traced."""
    plan, found = question.plan, {}
    known: list[Evaluator] = []
    with Client() as client:
        # From the longest on: what holds there mostly holds for shorter ones.
        for seq in sorted(seqs, reverse=True):
            point = Point(batch=plan.batch, seq=seq)
            holds = (e for e in known if e.holds(point, question.target))
            evaluator = next(holds, None)
            if evaluator is None and len(known) < _KINDS:
                evaluator = _learnt(client, replace(plan, seq=seq))
                known += [evaluator] if evaluator is not None else []
            if evaluator is not None and evaluator.holds(point, question.target):
                found[seq] = evaluator.trace(point, question.target)
                continue
            answer = client.trace(replace(plan, seq=seq))
            if isinstance(answer, MemcalcError):
                raise answer
            found[seq] = answer[1]
    return found


def _learnt(client: Client, plan: Plan) -> Evaluator | None:
    """Formulas learnt at this plan; ``None``: it has none.

    Raises:
        UsageError: the model takes no tokens.
    """
    grown = client.grow(plan)
    if isinstance(grown, MemcalcError):
        return None
    if grown.default_seq is None:
        raise UsageError(f"{plan.name} takes no tokens: leave out --lengths.")
    return Evaluator(grown)


def sequence(traces: Sequence[Trace]) -> Iterator[tuple[Any, ...]]:
    """A run whose steps are the last steps of these traces, as the allocator replays it.

    The first trace is replayed from the program's start, with both of its steps. What one step
    hands over to the next is matched by what made it, whatever its size.
    """
    carried: dict[Any, Any] = {}
    for number, trace in enumerate(traces):
        begin, end = last_step(trace.events, trace.marks)
        held = partners(trace.events, _kinds(trace), begin, end)
        slots = _slots(trace, held)
        coming: dict[Any, Any] = {}
        made: set[int] = set()
        for event in trace.events[0 if number == 0 else begin : end]:
            if event >= 0:
                if number and event in held.kept:
                    continue
                made.add(event)
                storage = trace.storages[event]
                on = (storage.stream,) if storage.stream else ()
                yield ((number, event), storage.bytes, *on)
                if event in slots:
                    coming[slots[event]] = (number, event)
                continue
            key = (number, ~event)
            if ~event not in made:
                key = carried.pop(slots.get(held.successor.get(~event)), None)
                if key is None:
                    continue
            used_by = trace.storages[~event].used_by
            if used_by is not None:
                yield Op.USED_BY, key, used_by
            yield key, 0
        carried.update(coming)


def _kinds(trace: Trace) -> Any:
    def kind(number: int) -> Any:
        storage = trace.storages[number]
        return storage.bytes, storage.op, storage.module, storage.phase

    return kind


def _slots(trace: Trace, held: Held) -> dict[int | None, Any]:
    """Names of what a step hands over, the same in traces of other lengths."""
    seen: Counter[Any] = Counter()
    slots: dict[int | None, Any] = {}
    for number in sorted(held.successor.values()):
        storage = trace.storages[number]
        name = storage.op, storage.module, storage.phase
        slots[number] = (*name, seen[name])
        seen[name] += 1
    return slots
