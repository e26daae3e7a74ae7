"""The live view of a command that runs: GPUs, processes, and what PyTorch holds."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from memcalc import untrusted_text
from memcalc.measure.followed import WatchedProcess
from memcalc.measure.gpu.sampler import CardWatch
from memcalc.measure.watched_command import CommandNow
from memcalc.report.blocks import gauge
from memcalc.units import format_bytes

_LEVELS = " ▁▂▃▄▅▆▇█"
_BAR = 20
"""Columns of a GPU's bar."""


def view(now: CommandNow, processes: Sequence[WatchedProcess], width: int) -> list[str]:
    """Return the lines of ``memcalc watch``: GPUs, their processes, PyTorch's memory."""
    lines = [f"{now.seconds:.0f} s, main memory {format_bytes(now.resident)} at most"]
    for card in now.cards:
        lines += _card_lines(card, now.pids)
    if not now.cards:
        lines.append(f"GPU memory: n/a ({now.reason.rstrip('.') or 'there is no GPU here'})")
    for one in processes:
        lines += _process_lines(one, width)
    return [untrusted_text.line(line)[:width] for line in lines]


def _card_lines(card: CardWatch, pids: frozenset[int]) -> Iterator[str]:
    level = card.now or card.before
    if level is None:
        return
    memory = level.memory
    bar = gauge(memory.used / memory.total, _BAR)
    peak = "n/a" if card.peak_process is None else format_bytes(card.peak_process)
    yield (
        f"{card.card.name}  {bar} {format_bytes(memory.used)} of {format_bytes(memory.total)}, "
        f"this command {peak} at most"
    )
    for user in sorted(level.users or (), key=lambda one: -(one.bytes or 0)):
        held = "n/a" if user.bytes is None else format_bytes(user.bytes)
        whose = "" if user.pid in pids else ", not of this command"
        yield f"  {held:>10}  process {user.pid}, {user.name}{whose}"


def _process_lines(one: WatchedProcess, width: int) -> Iterator[str]:
    last, peak = format_bytes(one.allocated[-1]), format_bytes(one.peak)
    steps = f"optimizer steps: {one.steps}" if one.steps else "no optimizer step yet"
    yield f"PyTorch in process {one.pid}: {steps}, allocated {last} now, {peak} at most"
    yield f"  {_draw_levels(one.allocated, width - 2)}"


def _draw_levels(levels: Sequence[int], columns: int) -> str:
    """Return a sparkline of levels over time, the highest of each column."""
    count = min(len(levels), columns)
    edges = [len(levels) * at // count for at in range(count + 1)]
    highest = max(*levels, 1)
    tops = (max(levels[begin:end]) for begin, end in pairwise(edges))
    return "".join(_LEVELS[-(-top * (len(_LEVELS) - 1) // highest)] for top in tops)
