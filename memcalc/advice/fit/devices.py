"""How many of a GPU a plan needs: the fewest over which a layout fits, and what each one sends."""

from collections.abc import Iterator

from msgspec.structs import replace

from memcalc.advice.fit.records import DevicesFit
from memcalc.advice.remedies.bounds import Floor
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.records.plan import Plan
from memcalc.units import format_bytes
from memcalc.workload import layouts

COUNTS = (1, 2, 4, 8, 16, 32, 64)
_WITHIN_MACHINE = 8
"""Products are not divided over more GPUs: machines that join more by NVLink are few."""


def devices_that_fit(plan: Plan, answers: Answers) -> tuple[DevicesFit, ...]:
    """Try 1, 2, 4... GPUs with each parallel layout until one fits; return every attempt.

    Rows of one count are sorted: those that fit come first, and of them the one that sends least.
    """
    found: list[DevicesFit] = []
    floor = Floor(plan)
    for count in COUNTS:
        rows = list(_try_layouts(plan, count, answers, floor))
        found += sorted(rows, key=lambda row: (not _fits(row), row.sent))
        if any(map(_fits, rows)):
            break
    return tuple(found)


def _try_layouts(plan: Plan, count: int, answers: Answers, floor: Floor) -> Iterator[DevicesFit]:
    """Try each layout over this many GPUs, but none whose least bytes cannot fit."""
    names: tuple[str | None, ...] = (None,)
    if count > 1:
        # DDP holds the same on any number of GPUs: where two are too few, more are.
        whole = ("ddp", "zero1") if count == 2 else ("zero1",)
        copies = (f"hsdp=2x{count // 2}",) if count > 2 else ()
        divided = (f"tp={count}",) if count <= _WITHIN_MACHINE else ()
        names = (*whole, *copies, *divided, "fsdp2")
    plans = []
    for name in names:
        there = replace(plan, devices=count, parallel=name, parallel_args=(), rank=None)
        size = floor.excess(there) if count > 1 else None
        if size is None:
            plans.append(there)
        else:
            held = "weights, gradients and optimizer state alone are"
            why = f"does not fit: {held} {format_bytes(size)}"
            yield DevicesFit(devices=count, parallel=name, reason=why)
    for there, answer in zip(plans, answers.predict(plans), strict=True):
        row = DevicesFit(devices=count, parallel=there.parallel)
        if isinstance(answer, UsageError) and layouts.spread(there).layout == "tp":
            # The layers of this model, or their heads, cannot be divided so.
            continue
        if isinstance(answer, MemcalcError):
            yield replace(row, reason=str(answer))
        else:
            yield replace(row, fit=answer.fit, sent=answer.traffic, messages=answer.sent)


def _fits(row: DevicesFit) -> bool:
    return row.fit is not None and row.fit.fits
