"""An explanation as a table for a terminal, and as markdown and JSON."""

from __future__ import annotations

import io
import json

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memcalc.explanation.records import Explanation, PeakContents
from memcalc.files.artifact import SCHEMA, encode
from memcalc.records.prediction import ALLOCATOR_RUNGS
from memcalc.report import explained, rows
from memcalc.report.rows import COMPONENT_WORDS
from memcalc.units import format_bytes, format_mib
from memcalc.version import __version__


def table(explanation: Explanation, *, top: int, color: bool = False, width: int = 100) -> str:
    """For a person at a terminal; the ``top`` largest groups, and the rest in one row."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, no_color=not color, highlight=False
    )
    console.print(Text(rows.heading(explanation.prediction), style="bold"))
    console.print(explained.peak_line(explanation))
    verdict = rows.verdict(explanation.prediction)
    if verdict:
        style = "bold green" if verdict.startswith("fits") else "bold red"
        console.print(Text(verdict, style=style))
    console.print("Alive at the peak", style="italic")
    console.print(_peak(explanation.peak, top))
    console.print("Highest moments of the other phases", style="italic")
    for moment in explanation.others:
        line = explained.component_line(moment)
        console.print(
            f" {moment.phase.value:9} {format_mib(moment.requested):>12}  {line}", soft_wrap=True
        )
    if explanation.options:
        console.print("What each remedy changes by itself, estimated in full", style="italic")
        console.print(_options(explanation))
        for line in explained.failed(explanation):
            console.print(Padding(line, (0, 0, 0, 1)))
    if explanation.search is not None:
        first, *more = explained.search_lines(explanation, explanation.search)
        console.print(Text(first, style="bold"))
        for line in more:
            console.print(Text(line), soft_wrap=True)
    for line in explained.sources(explanation):
        console.print(f"source, {line}", style="dim")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _peak(moment: PeakContents, top: int) -> Table:
    shown, count, size = explained.split(moment, top)
    grid = Table(box=None)
    for name in ("bytes", "share", "n"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("component", no_wrap=True)
    grid.add_column("what, and what keeps it", overflow="fold")
    for group in shown:
        words = Text(explained.group_words(group))
        words.append(f"\n  {group.kept}", style="dim")
        part = explained.share(group.bytes, moment.requested)
        name = COMPONENT_WORDS[group.component]
        grid.add_row(format_bytes(group.bytes), part, str(group.count), name, words)
    if count:
        kinds = len(moment.groups) - len(shown)
        part = explained.share(size, moment.requested)
        words = Text(f"{kinds} more kinds (--top {len(moment.groups)} shows them)")
        grid.add_row(format_bytes(size), part, str(count), "", words)
    everything = sum(group.count for group in moment.groups)
    grid.add_row(
        format_mib(moment.requested), "100.0%", str(everything), "requested", "", style="bold"
    )
    return grid


def _options(explanation: Explanation) -> Table:
    grid = Table(box=None)
    columns = explained.option_columns(explanation)
    for name in columns:
        right = name not in (columns[0], columns[-1])
        grid.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for option in explanation.options:
        if option.trial.error is None:
            grid.add_row(*explained.option_row(explanation, option))
    return grid


def markdown(explanation: Explanation, *, top: int) -> str:
    """For a pull request or a notebook."""
    prediction, peak = explanation.prediction, explanation.peak
    lines = [f"### {rows.heading(prediction)}", "", explained.peak_line(explanation), ""]
    verdict = rows.verdict(prediction)
    lines += [verdict, ""] if verdict else []
    shown, count, size = explained.split(peak, top)
    lines += ["| alive at the peak | bytes | share | n | component | kept |"]
    lines += ["|---|---:|---:|---:|---|---|"]
    for group in shown:
        lines.append(
            f"| `{explained.group_words(group)}` | {group.bytes:,} | "
            f"{explained.share(group.bytes, peak.requested)} | {group.count} | "
            f"{COMPONENT_WORDS[group.component]} | {group.kept} |"
        )
    if count:
        part = explained.share(size, peak.requested)
        lines.append(f"| {len(peak.groups) - len(shown)} more | {size:,} | {part} | {count} | | |")
    lines += [f"| **requested** | **{peak.requested:,}** | 100.0% | | | |", ""]
    for moment in explanation.others:
        line = explained.component_line(moment)
        lines.append(f"- {moment.phase.value}: {format_mib(moment.requested)} ({line})")
    if explanation.options:
        columns = explained.option_columns(explanation)
        lines += ["", f"| {' | '.join(columns)} | source |"]
        lines += ["|---|" + "---:|" * (len(columns) - 2) + "---|---|"]
        for option in explanation.options:
            if option.trial.error is None:
                row = " | ".join(explained.option_row(explanation, option))
                lines.append(f"| {row} | {option.remedy.source} |")
        lines += ["", *explained.failed(explanation)]
    if explanation.search is not None:
        lines += ["", *explained.search_lines(explanation, explanation.search)]
    return "\n".join(lines).rstrip() + "\n"


def as_json(explanation: Explanation) -> str:
    """Everything, in exact bytes; ``record`` reads back as an ``Explanation``."""
    before = explanation.figures
    options = [
        {
            "key": option.remedy.key,
            "saved": {rung: option.trial.saved(before, rung) for rung in ALLOCATOR_RUNGS},
            "more_flops": option.trial.more_flops(before),
            "error": option.trial.error,
        }
        for option in explanation.options
    ]
    body = {
        "schema": SCHEMA,
        "kind": "explanation",
        "memcalc": __version__,
        "peak": encode(explanation.peak),
        "others": encode(explanation.others),
        "remedies": options,
        "search": encode(explanation.search),
        "record": encode(explanation),
    }
    return json.dumps(body, indent=1) + "\n"
