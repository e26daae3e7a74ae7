"""The report of ``memcalc doctor``."""

from collections.abc import Sequence

from memcalc import untrusted_text
from memcalc.records.facts import Fact
from memcalc.wrap import fold


def render(facts: Sequence[Fact], width: int) -> str:
    """One entry a fact: a mark for what is amiss, and what to do under it."""
    lines: list[str] = []
    for fact in facts:
        mark = " " if fact.well else "!"
        lines += fold(untrusted_text.line(f"{mark} {fact.name:13} {fact.value}"), width, 16)
        if fact.advice:
            lines += fold(untrusted_text.line(f"{'':16}-> {fact.advice}"), width, 19)
    return untrusted_text.lines("\n".join(lines) + "\n")
