"""Follows the operators of some steps by PyTorch's profiler."""

from memcalc.engine import torch_internals as internals
from memcalc.engine.notes import Notes
from memcalc.records.trace import Phase

_MANY = 25_000
"""Births and deaths of a step whose operators are not worth the time of PyTorch's profiler, which
takes a second for as many. Scratch of kernels then counts as temporary."""


class Operators:
    """Learns which operators ask for blocks.

    ``detailed`` does so in every step, however slow, and learns the dtype of every block; without
    ``named`` none are learned, which saves a third of a run's time.
    """

    def __init__(self, notes: Notes, *, detailed: bool = False, named: bool = True) -> None:
        self._notes, self._detailed, self._named = notes, detailed, named
        self._decided: int | None = None
        """The last step for which it is decided whether they are followed."""

    def begin(self, step: int) -> None:
        """Start PyTorch's profiler in a step to learn its operators, unless it is too long."""
        notes = self._notes
        if step == self._decided:
            return
        self._decided = step
        wanted = self._detailed or (self._named and self._events_of_last_step() < _MANY)
        if wanted and notes.profiler is None:
            notes.profiler = internals.memory_profiler(with_dtypes=self._detailed)
            notes.profiled = (notes.now(), 0)
            notes.profiler.__enter__()

    def end(self) -> None:
        """Stop PyTorch's profiler."""
        notes = self._notes
        if notes.profiler is not None and not notes.profiled[1]:
            notes.profiler.__exit__(None, None, None)
            notes.profiled = (notes.profiled[0], notes.now())

    def _events_of_last_step(self) -> int:
        """Return the births and deaths of the step that ends here, or 0 before the first step."""
        before = [one for one in self._notes.intervals if one.phase is not Phase.LOAD]
        if not before:
            return 0
        step = [one for one in before if one.step == before[-1].step]
        return self._notes.now() - step[0].begin
