"""Any answer as blocks and as JSON, whether it was just found or a file keeps it."""

import io
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memcalc.advice.explain.difference import Difference
from memcalc.advice.explain.recorded import Recorded, WhatIf
from memcalc.advice.explain.records import Explanation
from memcalc.advice.fit.records import FitAnswer
from memcalc.advice.suggest.records import Suggestions
from memcalc.errors import UsageError
from memcalc.files.artifact import document, encode, part
from memcalc.files.results import Run
from memcalc.records.levels import Levels
from memcalc.records.measurement import Measurement
from memcalc.records.oom_text import OomText
from memcalc.records.prediction import ALLOCATOR_RUNGS as RUNGS
from memcalc.records.prediction import Prediction
from memcalc.report import explained, fitted, measured, oom_text, predictions, suggested
from memcalc.report.blocks import Block, Cell, Kind, Line, Share, Size, Table
from memcalc.report.suggested import Work
from memcalc.units import MIB, Unit, format_mib

KINDS: dict[str, type] = {
    "difference": Difference,
    "explanation": Explanation,
    "fit": FitAnswer,
    "out-of-memory": OomText,
    "snapshot": Recorded,
    "suggestions": Suggestions,
}
"""Answers by the names that files and ``memcalc.cli.output`` have for them."""


def read(data: Mapping[str, Any], path: Path) -> Any:
    """Decode a result file's JSON as the answer of its kind, one of ``KINDS``.

    Raises:
        UsageError: it is damaged.
    """
    name = str(data.get("kind"))
    if name not in KINDS:
        raise UsageError(f"{path} is damaged: it holds no answer of a kind that memcalc writes.")
    return part(KINDS[name], data.get("record", data), path, name)


def as_json(record: Any) -> str:
    """Return an answer of one of ``KINDS`` as JSON, in exact bytes."""
    name = next(name for name, kind in KINDS.items() if isinstance(record, kind))
    return document(name, encode(record))


def blocks(record: Any, *, verbose: bool, top: int, work: Work | None = None) -> list[Block]:
    """Return any answer as blocks; ``top``: the most groups to list, ``work``: tokens to train."""
    found: Iterable[Block]
    match record:
        case Prediction():
            found = predictions.blocks([record], verbose=verbose)
        case Measurement():
            found = measured.blocks([Run(plan=record.plan, measurement=record)])
        case Run():
            found = measured.blocks([record])
        case Suggestions():
            found = suggested.blocks(record, work or Work(), verbose=verbose)
        case Difference():
            found = explained.difference_blocks(record, top)
        case Explanation():
            found = explained.blocks(record, top, verbose=verbose)
        case OomText():
            found = oom_text.blocks(record)
        case FitAnswer():
            found = fitted.blocks(record, verbose=verbose)
        case _:
            found = snapshot_blocks(record, top)
    return list(found)


def to_dataframe(record: Any) -> Any:
    """Return an answer as a pandas DataFrame: a prediction's row, or its largest table.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UsageError("to_dataframe() needs pandas: pip install pandas.") from None
    if isinstance(record, Prediction):
        return pandas.read_csv(io.StringIO(predictions.as_csv([record])))
    shown = blocks(record, verbose=True, top=sys.maxsize)
    tables = [block for block in shown if isinstance(block, Table)]
    if not tables:
        return pandas.DataFrame()
    largest = max(tables, key=lambda table: len(table.rows))
    rows = [[_to_value(cell) for cell in row] for row in largest.rows]
    return pandas.DataFrame(rows, columns=list(largest.head) or None)


def _to_value(cell: Cell) -> str | float:
    """Return a table cell as a number if it has bytes or a share, else as text."""
    if isinstance(cell, Size):
        return cell.bytes
    if isinstance(cell, Share):
        return cell.part
    return cell if isinstance(cell, str) else ": ".join(cell)


def snapshot_blocks(found: Recorded, top: int) -> list[Block]:
    """Return a replayed memory snapshot as blocks: storages by line, peaks by setting."""
    shown, rest = found.held.sites[:top], found.held.sites[top:]
    sites: list[tuple[Cell, ...]] = [(Size(s.bytes), str(s.count), s.name) for s in shown]
    if rest:
        size, count = sum(site.bytes for site in rest), sum(site.count for site in rest)
        sites.append((Size(size), str(count), f"{len(rest)} more lines"))
    count = sum(site.count for site in found.held.sites)
    sites.append((Size(found.held.levels.allocated), str(count), "allocated"))
    settings: list[tuple[Cell, ...]] = []
    for one in found.what_ifs:
        peaks = [Size(getattr(one.peaks, rung), Unit("MiB", MIB)) for rung in RUNGS]
        settings.append((_name_setting(found, one), *peaks, str(one.retries)))
    held: list[Block] = [
        *map(Line, _summarize_recording(found)),
        Line("Alive at the end, by the line that allocated it", Kind.SECTION),
        Table(head=("bytes", "n", "line"), rows=sites, words=(2,)),
    ]
    if not settings:
        return held
    return [
        *held,
        Line("Peaks of the same requests under other settings", Kind.SECTION),
        Table(
            head=("PYTORCH_ALLOC_CONF", *(f"{rung} MiB" for rung in RUNGS), "retries"),
            rows=settings,
        ),
        *(
            Line(f"{_name_setting(found, one)}: out of memory, {one.out_of_memory}")
            for one in found.what_ifs
            if one.out_of_memory is not None
        ),
    ]


def _summarize_recording(found: Recorded) -> list[str]:

    def rungs(levels: Levels) -> str:
        return ", ".join(f"{rung} {format_mib(getattr(levels, rung))}" for rung in RUNGS)

    held = found.held
    lines = [
        f"{found.entries:,} events recorded with PYTORCH_ALLOC_CONF={found.conf or '(none)'}",
        f"at its end: {rungs(held.levels)}; {held.segments} segments, largest free block "
        f"{format_mib(held.largest_free)}",
    ]
    if found.replayed is not None:
        lines.append(f"a replay by PyTorch equals the recording; peaks: {rungs(found.replayed)}")
    else:
        how = " exactly" if found.what_ifs else ""
        lines.append(f"not replayed{how}: {found.not_replayed}")
    if found.older:
        lines.append(
            f"{found.older} storages are older than the recording: the figures below are estimates"
        )
    return lines


def _name_setting(found: Recorded, one: WhatIf) -> str:
    name = one.conf or "(none)"
    return f"{name} (as it ran)" if one.conf == found.conf else name
