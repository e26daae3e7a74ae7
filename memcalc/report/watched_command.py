"""The memory of a watched command, in a few lines."""

from __future__ import annotations

from memcalc import untrusted_text
from memcalc.measure.watched_command import CommandResult
from memcalc.report.measured import source_words
from memcalc.units import format_mib
from memcalc.wrap import fold


def render(outcome: CommandResult, width: int | None = None) -> str:
    """One line a fact.

    Args:
        outcome: what was found.
        width: columns; ``None``: no line is broken.
    """
    measured = outcome.measurement
    lines = [f"ended with exit code {outcome.code} after {measured.seconds:.1f} s"]
    rss = measured.peak_rss
    held = f"n/a ({measured.unknown['peak_rss']})" if rss is None else format_mib(rss)
    lines.append(f"main memory, largest resident sets of all its processes together: {held}")
    for gpu in outcome.gpus:
        words = f"{source_words(gpu)}, {gpu.samples} samples {gpu.interval:g} s apart"
        lines.append(
            f"GPU memory occupied on {gpu.name}: {format_mib(gpu.peak_process or 0)} ({words})"
        )
        lines += [f"warning: {warning}" for warning in gpu.warnings]
    if not outcome.gpus:
        lines.append(f"GPU memory occupied: n/a ({measured.unknown['process_used'].rstrip('.')})")
    said = [f"memcalc: {untrusted_text.line(line)}" for line in lines]
    if width is not None:
        said = [part for line in said for part in fold(line, width, len("memcalc: "))]
    return untrusted_text.lines("".join(f"{line}\n" for line in said))
