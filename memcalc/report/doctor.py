"""What ``memcalc doctor`` found, as lines a person can act on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from memcalc import foreign
from memcalc.measure.doctor import Fact


def render(facts: Sequence[Fact], width: int) -> str:
    """One entry a fact: a mark for what is amiss, and what to do under it."""
    lines: list[str] = []
    for fact in facts:
        mark = " " if fact.well else "!"
        lines += textwrap.wrap(
            foreign.line(f"{mark} {fact.name:13} {fact.value}"), width, subsequent_indent=" " * 16
        )
        if fact.advice:
            lines += textwrap.wrap(
                foreign.line(f"{'':16}-> {fact.advice}"), width, subsequent_indent=" " * 19
            )
    return foreign.lines("\n".join(lines) + "\n")
