"""Batches of varying length: a hundred of them are run one after the other.

A batch is as long as its longest sample. The allocator keeps what it took for the batches before,
cut to their sizes, so what it reserves depends on the order they come in. A hundred batches are
drawn, always the same ones, and three ways of training on them are compared.
"""

import math
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import Judged
from memcalc.estimation.fits import device_of
from memcalc.estimation.question import Asked, asked
from memcalc.files.untrusted_values import content
from memcalc.records.plan import Plan
from memcalc.records.prediction import ALLOCATOR_RUNGS, Prediction, Varied, Way

BATCHES = 100
_SEED = 0
FORM = "normal:MEAN,STD, uniform:A,B nor a file with one length a line"
_NUMBER = r"([0-9]{1,8}(?:\.[0-9]{1,9})?)"
DRAWN = re.compile(rf"(normal|uniform):{_NUMBER},{_NUMBER}")
_LENGTH = re.compile("0*[1-9][0-9]{0,6}")


def samples(text: str, count: int, longest: int | None) -> list[int]:
    """Draw lengths as ``FORM`` says, cut at the longest; the same for the same text.

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
        if not os.path.isfile(text):
            raise UsageError(f"--lengths {text} is neither {FORM}.")
        lines = content(Path(text)).decode(errors="replace").split()
        if not lines or not all(map(_LENGTH.fullmatch, lines)):
            rule = "write one whole number of tokens a line, to 9999999."
            raise UsageError(f"--lengths {text}: {rule}")
        drawn = [int(draw.choice(lines)) for _ in range(count)]
    most = longest or max(drawn)
    return [min(max(length, 1), most) for length in drawn]


def varied(plan: Plan, text: str, timeout: float = math.inf) -> Varied:
    """Run a hundred batches of these lengths, cut at ``plan.seq``, in three ways.

    ``timeout``: seconds after which one of them is ended.

    Raises:
        MemcalcError: the plan could not be run, or its model takes one length only.
    """
    if plan.infers or plan.command or plan.target == "cpu" or plan.devices > 1:
        raise UsageError("--lengths is for training on one GPU: leave it out, or the rest.")
    if plan.inputs:
        raise UsageError(
            "--lengths is for batches that memcalc makes, and --input describes them: leave one "
            "out."
        )
    question = asked(plan)
    drawn = samples(text, BATCHES * plan.batch, plan.seq)
    # A batch is as long as its longest sample.
    as_drawn, bucketed = (
        [max(one[start : start + plan.batch]) for start in range(0, len(one), plan.batch)]
        for one in (drawn, sorted(drawn))
    )
    random.Random(_SEED).shuffle(bucketed)
    growing = replace(plan, alloc_conf=(f"{plan.alloc_conf},expandable_segments:True".lstrip(",")))
    runs = (
        ("in the order drawn", plan, as_drawn),
        ("bucketed by length", plan, bucketed),
        ("expandable segments", growing, as_drawn),
        ("the shortest batch", plan, [min(as_drawn)] * 2),
        ("the longest batch", plan, [max(as_drawn)] * 2),
    )
    reached = _run(question, runs, timeout)
    ways = tuple(
        Way(
            name=name,
            **{rung: getattr(found.peaks, rung) for rung in ALLOCATOR_RUNGS},
            shortest=min(lengths),
            longest=max(lengths),
        )
        for (name, _, lengths), found in zip(runs[:3], reached, strict=False)
    )
    return Varied(
        fit=next(iter(reached[0].fits), None),
        lengths=text,
        batches=BATCHES,
        longest=max(drawn),
        least=reached[3].peaks.allocated,
        most=reached[4].peaks.allocated,
        ways=ways,
    )


def _run(
    question: Asked, runs: Sequence[tuple[str, Plan, Sequence[int]]], timeout: float
) -> list[Judged]:
    """Run each of these, as many at once as the machine has room for."""
    gpu = question.gpu
    devices = [device_of(gpu, plan=question.plan)] if gpu is not None else []
    answers = Answers(workers=None, timeout=timeout)

    def one(run: tuple[str, Plan, Sequence[int]]) -> Judged:
        return answers.judge(run[1], devices, run[2])

    return list(answers.side_by_side(one, runs))


def over_batches(answer: Prediction, found: Varied) -> Prediction:
    """An estimate whose peak and fit are those of all the batches, in the order drawn."""
    drawn, peak = found.ways[0], answer.peak
    more = drawn.reserved - (peak.reserved or 0)
    used = peak.process_used
    return replace(
        answer,
        varied=found,
        fit=found.fit,
        peak=replace(
            peak,
            **{rung: getattr(drawn, rung) for rung in ALLOCATOR_RUNGS},
            process_used=None if used is None else used + more,
        ),
    )
