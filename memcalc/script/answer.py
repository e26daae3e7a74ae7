"""The answer for a program: of each GPU that it used, by how it ended, and by how it grows."""

import itertools
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from memcalc.estimation.engine import engine
from memcalc.estimation.kept import Traced
from memcalc.estimation.predict import predict
from memcalc.estimation.processes import FITTING, format_ranks, make_rank_row, need
from memcalc.estimation.question import ResolvedPlan
from memcalc.estimation.replays import Replays
from memcalc.records.model import OptimizerState
from memcalc.records.plan import Plan
from memcalc.records.prediction import LONGER, FitVerdict, OnGpu, Prediction
from memcalc.records.trace import Trace
from memcalc.script.growth import find_growth
from memcalc.script.opened import Opened
from memcalc.script.records import Ending, RankAnswers


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program, and its memory on the GPU."""

    ending: Ending
    traced: Traced | None
    """``None``: it never used the GPU."""
    served: Prediction | None = None
    """A serving engine's figures, where the program starts one and does not train."""
    opened: Opened = Opened(unknown="nothing was noted")
    """What all its runs read."""


def add_ending(traced: Traced, ending: Ending, room: int | None) -> Traced:
    """Add a program's memory growth and refused request to its prediction and verdict."""
    prediction = traced.prediction
    reserved, ended = prediction.peak.reserved or 0, not (ending.stopped or ending.code)
    grows = find_growth(traced.trace, room, reserved, ended=ended)
    prediction = replace(prediction, growth=grows, refusal=ending.refusal)
    if grows is not None:
        # Steps differ since more is held, and a longer run holds more still.
        left = tuple(one for one in prediction.uncounted if not one.startswith(LONGER))
        prediction = replace(prediction, uncounted=left)
    fit = prediction.fit
    refused = ending.refusal is not None and not ending.refusal.by_own_limit
    if refused and fit is not None:
        prediction = replace(prediction, fit=replace(fit, verdict=FitVerdict.DOES_NOT_FIT))
        return replace(traced, prediction=prediction)
    if fit is not None and fit.verdict in FITTING and grows and grows.runs_full:
        prediction = replace(prediction, fit=replace(fit, verdict=FitVerdict.LEAKS))
    if ending.code:
        prediction = _mark_as_partial(prediction, ending.code)
    return replace(traced, prediction=prediction)


def _mark_as_partial(prediction: Prediction, code: int) -> Prediction:
    """Note that a prediction covers a failed run; drop the verdict that it fits."""
    until_then = f"the script ended with exit code {code}; figures cover the run until then"
    told = replace(prediction, assumptions=(until_then, *prediction.assumptions))
    if told.fit is None or told.fit.verdict not in FITTING:
        return told
    return replace(told, fit=None, unknown={**told.unknown, "fit": until_then})


def predict_gpus(
    question: ResolvedPlan, traces: Mapping[int, Trace], state: OptimizerState
) -> Traced | None:
    """Predict each GPU's memory from its trace; return the largest, None without a GPU."""
    found = {
        gpu: Traced(
            prediction=predict(question, Replays(trace, engine.player(question.plan)), state),
            trace=trace,
        )
        for gpu, trace in traces.items()
    }
    if not found or [*found] == [0]:
        return found.get(0)
    device = max(found, key=lambda gpu: (need(found[gpu].prediction), -gpu))
    chosen = found[device]
    gpus = tuple(
        OnGpu(index=gpu, peak=one.prediction.peak, fit=one.prediction.fit)
        for gpu, one in found.items()
    )
    return replace(chosen, prediction=replace(chosen.prediction, device=device, gpus=gpus))


def combine_ranks(found: Mapping[int, Simulated], answers: RankAnswers, plan: Plan) -> Simulated:
    """Return the answer of the rank that needs most, with the figures of all run ranks.

    The exit code is a failed rank's, whether it needs most or not.
    """
    known = {rank: one.traced for rank, one in found.items() if one.traced is not None}
    code = next((one.ending.code for one in found.values() if one.ending.code), 0)
    if not known:
        return next(iter(found.values()))
    most = max(known, key=lambda rank: (need(known[rank].prediction), -rank))
    prediction = known[most].prediction
    prediction = replace(prediction, plan=plan, rank=most if answers.world > 1 else None)
    if plan.rank == "all":
        rows = tuple(
            make_rank_row(
                rank,
                one.prediction,
                alike=answers.alike.get(rank, ()),
                stage=next((at for at, rs in enumerate(answers.stages) if rank in rs), None),
                code=found[rank].ending.code,
            )
            for rank, one in sorted(known.items())
        )
        told = tuple(_describe_other_ranks(answers, found))
        prediction = replace(prediction, ranks=rows, assumptions=(*told, *prediction.assumptions))
    ending = replace(found[most].ending, code=code)
    return Simulated(ending=ending, traced=replace(known[most], prediction=prediction))


def _describe_other_ranks(answers: RankAnswers, found: Mapping[int, Simulated]) -> Iterator[str]:
    """Yield sentences on ranks that were not run, or use no GPU."""
    for rank, others in answers.alike.items():
        are, do = ("are", "do") if len(others) > 1 else ("is", "does")
        if not answers.stages:
            yield f"{format_ranks(others)} {are} not run: the first and the last take the same"
        else:
            yield (
                f"{format_ranks(others)} {do} what rank {rank} does "
                "on a share of the same size, by the groups that the script makes, and "
                f"{are} not run"
            )
    empty = [rank for rank, one in found.items() if one.traced is None]
    if empty:
        yield f"{format_ranks(empty)} put nothing on a GPU"
    covered = {*found, *itertools.chain.from_iterable(answers.alike.values())}
    left = [rank for rank in range(answers.world) if rank not in covered]
    if left:
        yield f"{format_ranks(left)} {'are' if len(left) > 1 else 'is'} not run"
