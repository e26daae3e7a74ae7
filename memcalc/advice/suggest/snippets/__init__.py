"""A plan as settings of the program that will train it, to copy.

What that program has no word for is a comment, so that nothing of the plan is dropped unsaid.
"""

from __future__ import annotations

from collections.abc import Callable

from memcalc.advice.suggest.snippets import accelerate, axolotl, trainer
from memcalc.advice.suggest.snippets.text import Lines
from memcalc.errors import unknown
from memcalc.records.plan import Plan

PROGRAMS: dict[str, Callable[[Plan], Lines]] = {
    "trainer": trainer.lines,
    "accelerate": accelerate.lines,
    "axolotl": axolotl.lines,
}


def snippet(plan: Plan, program: str) -> str:
    """The plan as the settings of a program.

    Args:
        plan: what to train.
        program: one of ``PROGRAMS``.

    Raises:
        UsageError: there is no such program.
    """
    if program not in PROGRAMS:
        raise unknown("program", program, list(PROGRAMS), hint="see memcalc suggest --help.")
    return "\n".join(PROGRAMS[program](plan)) + "\n"
