"""Any answer as blocks, whether it was just found or a file keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memcalc.advice.explain.difference import Difference
from memcalc.advice.explain.recorded import Recorded
from memcalc.advice.explain.records import Explanation
from memcalc.advice.fit.records import FitAnswer
from memcalc.advice.suggest.records import Cards, Suggestions
from memcalc.files.artifact import part
from memcalc.files.results import Run
from memcalc.records.measurement import Measurement
from memcalc.records.prediction import Prediction
from memcalc.report import (
    differences,
    explained,
    fitted,
    gpus,
    measured,
    predictions,
    recorded,
    suggested,
)
from memcalc.report.blocks import Block


class Shown(NamedTuple):
    """An answer that was read."""

    kind: str
    """Of ``memcalc.files.formats``: how it can be written."""
    blocks: list[Block]
    """For people."""
    json: Callable[[], str]
    """For programs."""


class _Kind(NamedTuple):
    record: type
    format: str
    json: Callable[[Any], str]


_KINDS = {
    "cards": _Kind(Cards, "suggestions", gpus.as_json),
    "difference": _Kind(Difference, "difference", differences.as_json),
    "fit": _Kind(FitAnswer, "fit", fitted.as_json),
    "snapshot": _Kind(Recorded, "snapshot", recorded.as_json),
    "suggestions": _Kind(Suggestions, "suggestions", suggested.as_json),
}
_HEAD = ("schema", "kind", "memcalc")


def shown(data: Mapping[str, Any], path: Path, *, verbose: bool, top: int) -> Shown | None:
    """What a result file holds that is neither a prediction, an explanation nor a measurement.

    Args:
        data: of the file, read.
        path: where it is from, for a sentence on what is damaged.
        verbose: every figure and source.
        top: kinds of storage to list.

    Returns:
        ``None``: it holds something else.

    Raises:
        UsageError: it is damaged.
    """
    name = str(data.get("kind"))
    kind = _KINDS.get(name)
    if kind is None:
        return None
    body = {key: value for key, value in data.items() if key not in _HEAD}
    found: Any = part(kind.record, body, path, name)
    return Shown(kind.format, blocks(found, verbose=verbose, top=top), lambda: kind.json(found))


def blocks(record: Any, *, verbose: bool, top: int) -> list[Block]:
    """An answer as blocks.

    Args:
        record: a prediction, explanation, measurement or other answer.
        verbose: every figure and source.
        top: kinds of storage to list.
    """
    if isinstance(record, Prediction):
        return predictions.blocks([record], verbose=verbose)
    if isinstance(record, Explanation):
        return explained.blocks(record, top, verbose=verbose)
    if isinstance(record, FitAnswer):
        return fitted.blocks(record, verbose=verbose)
    if isinstance(record, Suggestions):
        return list(suggested.blocks(record, suggested.Work(), verbose=verbose))
    if isinstance(record, Cards):
        return list(gpus.blocks(record, suggested.Work(), verbose=verbose))
    if isinstance(record, Difference):
        return list(differences.blocks(record, top))
    if isinstance(record, Recorded):
        return recorded.blocks(record, top)
    run = Run(plan=record.plan, measurement=record) if isinstance(record, Measurement) else record
    return measured.blocks([run])
