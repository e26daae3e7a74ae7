"""Any answer as blocks and as JSON, whether it was just found or a file keeps it."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memcalc.advice.explain.difference import Difference
from memcalc.advice.explain.recorded import Recorded
from memcalc.advice.explain.records import Explanation
from memcalc.advice.fit.records import FitAnswer
from memcalc.advice.suggest.records import Cards, Suggestions
from memcalc.files.artifact import document, encode, part
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
from memcalc.report.suggested import Work


class _Shown(NamedTuple):
    """How much of an answer is shown."""

    verbose: bool
    top: int
    work: Work


class Kind(NamedTuple):
    """One kind of answer."""

    record: type
    format: str
    """Of ``memcalc.files.formats``: how it can be written."""
    blocks: Callable[[Any, _Shown], Iterable[Block]]


KINDS = {
    "cards": Kind(
        Cards, "suggestions", lambda o, how: gpus.blocks(o, how.work, verbose=how.verbose)
    ),
    "difference": Kind(Difference, "difference", lambda o, how: differences.blocks(o, how.top)),
    "explanation": Kind(
        Explanation, "explanation", lambda o, how: explained.blocks(o, how.top, verbose=how.verbose)
    ),
    "fit": Kind(FitAnswer, "fit", lambda o, how: fitted.blocks(o, verbose=how.verbose)),
    "snapshot": Kind(Recorded, "snapshot", lambda o, how: recorded.blocks(o, how.top)),
    "suggestions": Kind(
        Suggestions,
        "suggestions",
        lambda o, how: suggested.blocks(o, how.work, verbose=how.verbose),
    ),
}
_HEAD = ("schema", "kind", "memcalc")


def read(data: Mapping[str, Any], path: Path) -> Any:
    """The answer in a file that was read, which is of one of ``KINDS``.

    Raises:
        UsageError: it is damaged.
    """
    name = str(data["kind"])
    body = {key: value for key, value in data.items() if key not in _HEAD}
    if name == "explanation":
        body = data.get("record", {})
    return part(KINDS[name].record, body, path, name)


def as_json(record: Any) -> str:
    """An answer of one of ``KINDS``: everything, in exact bytes."""
    name = next(name for name, kind in KINDS.items() if isinstance(record, kind.record))
    explains = isinstance(record, Explanation)
    return document(name, explained.body(record) if explains else encode(record))


def blocks(record: Any, *, verbose: bool, top: int, work: Work | None = None) -> list[Block]:
    """Any answer as blocks, with so many kinds of storage; ``work``: what to train."""
    if isinstance(record, Prediction):
        return predictions.blocks([record], verbose=verbose)
    if isinstance(record, Measurement):
        record = Run(plan=record.plan, measurement=record)
    if isinstance(record, Run):
        return measured.blocks([record])
    kind = next(kind for kind in KINDS.values() if isinstance(record, kind.record))
    return list(kind.blocks(record, _Shown(verbose, top, work or Work())))
