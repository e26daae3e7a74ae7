"""The content of one page."""

from __future__ import annotations

import msgspec

from memcalc.advice.explain.difference import Difference
from memcalc.advice.explain.records import Explanation
from memcalc.advice.explain.sections import Chapter
from memcalc.files.results import Run


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report: chapters of plans, and what belongs to all of them."""

    chapters: tuple[Chapter, ...] = ()
    explanation: Explanation | None = None
    difference: Difference | None = None
    """What changed from the first chapter to the second."""
    runs: tuple[Run, ...] = ()
