"""An answer that a file keeps, shown as it was when it was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memcalc.files.artifact import part
from memcalc.report.blocks import Block


class Shown(NamedTuple):
    """An answer that was read."""

    kind: str
    """Of ``memcalc.files.formats``: how it can be written."""
    blocks: list[Block]
    """For people."""
    json: Callable[[], str]
    """For programs."""


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
    maker = _MAKERS.get(str(data.get("kind")))
    if maker is None:
        return None
    body = {key: value for key, value in data.items() if key not in _HEAD}
    return maker(body, path, verbose, top)


_HEAD = ("schema", "kind", "memcalc")


def _fit(body: dict[str, Any], path: Path, verbose: bool, top: int) -> Shown:
    from memcalc.advice.fit.records import FitAnswer
    from memcalc.report import fitted

    found = part(FitAnswer, body, path, "fit")
    return Shown("fit", fitted.blocks(found, verbose=verbose), lambda: fitted.as_json(found))


def _suggestions(body: dict[str, Any], path: Path, verbose: bool, top: int) -> Shown:
    from memcalc.advice.suggest.records import Suggestions
    from memcalc.report import suggested

    found = part(Suggestions, body, path, "suggestions")
    blocks = list(suggested.blocks(found, suggested.Work(), verbose=verbose))
    return Shown("suggestions", blocks, lambda: suggested.as_json(found))


def _cards(body: dict[str, Any], path: Path, verbose: bool, top: int) -> Shown:
    from memcalc.advice.suggest.records import Cards
    from memcalc.report import gpus, suggested

    found = part(Cards, body, path, "cards")
    blocks = list(gpus.blocks(found, suggested.Work(), verbose=verbose))
    return Shown("suggestions", blocks, lambda: gpus.as_json(found))


def _difference(body: dict[str, Any], path: Path, verbose: bool, top: int) -> Shown:
    from memcalc.advice.explain.difference import Difference
    from memcalc.report import differences

    found = part(Difference, body, path, "difference")
    blocks = list(differences.blocks(found, top))
    return Shown("difference", blocks, lambda: differences.as_json(found))


def _snapshot(body: dict[str, Any], path: Path, verbose: bool, top: int) -> Shown:
    from memcalc.advice.explain.recorded import Recorded
    from memcalc.report import recorded

    found = part(Recorded, body, path, "snapshot")
    return Shown("snapshot", recorded.blocks(found, top), lambda: recorded.as_json(found))


_MAKERS = {
    "cards": _cards,
    "difference": _difference,
    "fit": _fit,
    "snapshot": _snapshot,
    "suggestions": _suggestions,
}
