"""Runs a hundred batches of varying length one after the other.

A batch is as long as its longest sample. The allocator keeps blocks of earlier batches, so reserved
memory depends on the order of lengths. A hundred batches are drawn with a fixed seed, and three
ways of training on them are compared.
"""

import math
import os
import random
import re
from pathlib import Path

from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
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
    """Draw ``count`` sample lengths in tokens from a text: a distribution, or a file's path.

    Equal arguments give equal lengths.

    Raises:
        UsageError: the text has no such form, or the file holds something other than lengths.
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


def run_varying_lengths(plan: Plan, text: str, timeout: float = math.inf) -> Varied:
    """Run a hundred batches of varying length in three ways; return each way's peaks.

    ``text``: the lengths, as ``samples`` reads them, cut at ``plan.seq``; ``timeout``: seconds
    after which a run is ended.

    Raises:
        MemcalcError: the plan could not be run, or its model takes one length only.
    """
    if plan.infers or plan.command or plan.target == "cpu" or plan.devices > 1:
        raise UsageError("--lengths is for training on one GPU: leave it out, or the rest.")
    if plan.inputs:
        raise UsageError(
            "--lengths is for batches that memcalc makes; --input describes them: leave one out."
        )
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
    answers = Answers(workers=None, timeout=timeout)
    reached = list(answers.map_parallel(lambda run: answers.predict_lengths(*run[1:]), runs))
    ways = tuple(
        Way(
            name=name,
            **{rung: getattr(found.peak, rung) for rung in ALLOCATOR_RUNGS},
            shortest=min(lengths),
            longest=max(lengths),
        )
        for (name, _, lengths), found in zip(runs[:3], reached, strict=False)
    )
    return Varied(
        fit=reached[0].fit,
        lengths=text,
        batches=BATCHES,
        longest=max(drawn),
        least=reached[3].peak.allocated or 0,
        most=reached[4].peak.allocated or 0,
        ways=ways,
    )


def with_varied_peak(answer: Prediction, found: Varied) -> Prediction:
    """Return a prediction with peak and fit over batches of varying length."""
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
