"""Batches of varying length as blocks."""

from collections.abc import Iterator

from memcalc.records.prediction import Varied
from memcalc.report.blocks import Block, Kind, Line, Size, Table
from memcalc.units import format_bytes


def blocks(varied: Varied) -> Iterator[Block]:
    """Yield the peak and the reserved bytes, over all batches and by way of training."""
    first, *others = varied.ways
    yield Line(
        f"Lengths {varied.lengths}: {varied.batches} batches of "
        f"{first.shortest} to {first.longest} tokens",
        Kind.HEADING,
    )
    yield Line(
        f"one batch alone: peak allocated {format_bytes(varied.least)} to "
        f"{format_bytes(varied.most)}; one after the other: reserved {format_bytes(first.reserved)}"
    )
    yield Table(
        head=("way", "batches, tokens", "allocated", "reserved", "saved"),
        rows=[
            (
                way.name,
                f"{way.shortest} to {way.longest}",
                Size(way.allocated),
                Size(way.reserved),
                "" if way is first else format_bytes(first.reserved - way.reserved),
            )
            for way in (first, *others)
        ],
    )
