"""Combines the answers of several ranks into the answer of the rank that needs most memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.files.artifact import decode, encode
from memcalc.records.prediction import FitVerdict, OnRank, Prediction
from memcalc.workload.spread import Spread

FITTING = FitVerdict.FITS, FitVerdict.TIGHT
_WORST = *FITTING, FitVerdict.LEAKS, FitVerdict.DOES_NOT_FIT


def need(prediction: Prediction) -> tuple[int, int, int]:
    """Return the sort key of a prediction by memory: verdict, then reserved, then allocated."""
    fit, peak = prediction.fit, prediction.peak
    worst = _WORST.index(fit.verdict) if fit is not None else 0
    return worst, peak.reserved or 0, peak.allocated or peak.requested


def make_rank_row(
    rank: int,
    prediction: Prediction,
    *,
    alike: tuple[int, ...] = (),
    stage: int | None = None,
    code: int = 0,
) -> OnRank:
    """Return a rank's row in the prediction's table of all ranks."""
    dominant = max(prediction.components, key=lambda name: prediction.components[name])
    return OnRank(
        rank=rank,
        alike=alike,
        stage=stage,
        peak=prediction.peak,
        dominant=dominant,
        bytes=prediction.components[dominant],
        fit=prediction.fit,
        code=code,
    )


def combine_ranks(answers: Mapping[int, dict[str, Any]], over: Spread) -> dict[str, Any]:
    """Return the worker's answer of the rank that needs most, with a row for each rank.

    ``answers``: by rank, of the ranks that ran: one of each stage, or the first and the last.
    """
    found = {rank: decode(Prediction, one["prediction"]) for rank, one in answers.items()}
    most = max(found, key=lambda rank: (need(found[rank]), -rank))
    staged, each = over.stages > 1, over.world // over.stages
    rows = []
    for rank, one in found.items():
        others = range(rank + 1, rank + each) if staged or len(found) == 1 else ()
        stage = rank // each if staged else None
        rows.append(make_rank_row(rank, one, alike=tuple(others), stage=stage))
    prediction = replace(found[most], rank=most, ranks=tuple(rows))
    return {**answers[most], "prediction": encode(prediction)}


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as words, with ranges: ``ranks 0, 2 to 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}"
