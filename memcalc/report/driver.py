"""What a program took over the stand-in driver: the allocator's three rungs."""

from __future__ import annotations

from collections.abc import Iterator

from memcalc.files.artifact import document, encode
from memcalc.records.plan import Plan
from memcalc.report.blocks import Block, Cell, Kind, Line, Size, Table
from memcalc.script.driver.run import DriverRun

_SAID = {
    "requested": "what tensors ask for",
    "allocated": "max_memory_allocated()",
    "reserved": "max_memory_reserved()",
}


def blocks(plan: Plan, found: DriverRun) -> list[Block]:
    """For people."""
    peaks = encode(found.peaks)
    rows = [(rung, Size(peaks[rung]), said) for rung, said in _SAID.items()]
    steps = f"{found.steps} optimizer step{'' if found.steps == 1 else 's'}"
    return [
        Line(f"{plan.name}: {steps} by PyTorch {found.torch}, over the stand-in driver"),
        Table(head=("peak", "bytes", ""), rows=rows, words=(0, 2)),
        *_each(found),
        *(Line(f"assumed: {text}", Kind.NOTE) for text in found.assumptions),
    ]


def as_json(plan: Plan, found: DriverRun) -> str:
    """For programs."""
    return document("driver_run", {"plan": encode(plan), **encode(found)})


def _each(found: DriverRun) -> Iterator[Block]:
    """Where the program had several GPUs to itself."""
    if found.gpus:
        rungs = tuple(_SAID)
        rows: list[tuple[Cell, ...]] = [
            (f"cuda:{index}", *(Size(encode(peaks)[rung]) for rung in rungs))
            for index, peaks in enumerate(found.gpus)
        ]
        yield Table(head=("GPU", *rungs), rows=rows, words=(0,))
