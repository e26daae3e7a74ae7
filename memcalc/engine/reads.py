"""Where a program reads numbers that nobody computed, and which of its branches depend on them.

A number that `Tensor.item()` reads is an ordinary float or int that knows that it is made up, and
so are numbers computed from it. Comparing one is a decision: the line that decides is named. A
program can be run again with the decisions of one line taken the other way.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from memcalc.engine import checks, following, made_up, source_lines
from memcalc.engine.patches import Patches

_C: Any = torch._C
_TENSORBOARD = "torch.utils.tensorboard.writer"
_ENDLESS = 1_000
"""Decisions that are alike in a row before a loop that waits for another one is given it."""
RULE = (
    "`.item()` and the like read true values of data that the code put on the GPU and of what "
    "follows from it"
)
UNKNOWN = (
    "computed numbers read as made-up ones between 0.1 and 0.9 (at {}); nothing is decided by them"
)
LIMITED = "numbers of large tensors were computed for 20 s, then no more: unknown from {} on"
NOTHING = "every number read from the GPU is 0 here: this system refuses to map its addresses"


class Reads:
    """Notes the lines that read unknown numbers, and those that decide by one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.opposite = ""
        """The line whose decisions go the other way, and whose masks keep everything."""
        self.lines: dict[str, None] = {}
        self.escapes: dict[str, None] = {}
        """Lines of these where the numbers know no longer that they are made up."""
        self._decisions: dict[str, None] = {}
        self._limits: dict[str, None] = {}
        self._alike: Counter[tuple[str, bool]] = Counter()
        """How often in a row a line has decided so."""
        self._thread = threading.local()
        self._follow_tensors: Callable[[], None] | None = None

    def install(self, patches: Patches) -> None:
        """Mark numbers that are read from now on."""
        made_up.install(patches, self)
        self._follow_tensors = functools.partial(made_up.follow_tensors, patches)
        for name in ("item", "__bool__", "tolist"):
            patches.set(torch.Tensor, name, self._marking(getattr(torch.Tensor, name)))
        for owner, name in ((torch.Tensor, "__repr__"), (torch, "save")):
            patches.wrap(owner, name, self._shown)
        patches.wrap_later("safetensors.torch", "save_file", self._shown)
        for name in ("add_scalar", "add_scalars", "add_histogram"):
            patches.wrap_later(_TENSORBOARD, f"SummaryWriter.{name}", self._shown)
        if hasattr(torch.serialization, "add_safe_globals"):
            # A marked number is saved as a call of its plain type.
            torch.serialization.add_safe_globals([float, int])

    def note(self) -> None:
        """A number that is not known is read in this thread."""
        self._thread.count = self._count() + 1
        line = source_lines.line()
        self.lines[line or "PyTorch's own code"] = None
        if not getattr(self._thread, "marks", False):
            self.escape()

    def escape(self) -> None:
        """Note that this line takes a number that knows no longer that it is made up."""
        if line := self._deciding():
            self.escapes[line] = None

    def decide(self, found: bool, frame: FrameType | None) -> bool:
        """Note a decision by an unknown number.

        Args:
            found: what the number that stands in for it says.
            frame: of the code that tests it.

        Returns:
            It, its opposite where that is asked for, or what passes a check that would raise.
        """
        if (fails := checks.failing(frame)) is not None:
            return not fails
        if line := self._deciding():
            self._decisions[line] = None
            found = found is (line != self.opposite)
            self._alike[line, not found] = 0
            self._alike[line, found] += 1
            if self._alike[line, found] % _ENDLESS == 0 and checks.waits(frame):
                return not found
        return found

    def choose(self) -> bool:
        """Note that a mask of unknown numbers decides how large a result is.

        Returns:
            Whether the mask keeps everything in this run.
        """
        line = self._deciding()
        if line:
            self._decisions[line] = None
        return bool(line) and line == self.opposite

    def _deciding(self) -> str:
        """Return the line that decides, or nothing where numbers only choose how to be shown."""
        return "" if getattr(self._thread, "shows", False) else source_lines.line()

    def _shown(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._thread.shows = True
        try:
            return original(*args, **kwargs)
        finally:
            self._thread.shows = False

    def limit(self) -> None:
        """Note that numbers stay unknown because computing them takes too long."""
        if line := source_lines.line():
            self._limits[line] = None

    @property
    def decisions(self) -> tuple[str, ...]:
        """Lines whose branch, or how many elements a mask keeps, depends on unknown numbers."""
        return tuple(self._decisions)

    def none_is_known(self) -> None:
        """Say that nothing can be read here."""
        self._say(NOTHING)

    def end(self) -> None:
        """Say what was read."""
        self._say(RULE)
        if self._limits:
            self._say(LIMITED.format(source_lines.listed(self._limits)))
        if self.lines and not (self._decisions or self.escapes):
            self._say(UNKNOWN.format(source_lines.listed(self.lines)))

    def _count(self) -> int:
        return getattr(self._thread, "count", 0)

    def _marking(self, original: Any) -> Callable[[torch.Tensor], Any]:
        """Return a tensor's method that marks what it reads, if that is unknown."""
        guard, keys = _C._ExcludeDispatchKeyGuard, following.keys()

        @functools.wraps(original)
        def method(tensor: torch.Tensor) -> Any:
            if type(tensor) is torch.Tensor and tensor.is_cpu:
                # An optimizer reads its counts of steps so, one for each parameter.
                with guard(keys):
                    return original(tensor)
            if not tensor.is_cuda:
                return original(tensor)
            before, self._thread.marks = self._count(), True
            try:
                found = original(tensor)
            finally:
                self._thread.marks = False
            if self._count() == before:
                return found
            return self._mark(found, tensor, sys._getframe(1))

        return method

    def _mark(self, found: Any, tensor: torch.Tensor, frame: FrameType) -> Any:
        """Return what was read, marked; booleans decide, and whole numbers may be sizes."""
        if isinstance(found, bool):
            return self.decide(found, frame)
        if self._follow_tensors is not None:
            self._follow_tensors()
            self._follow_tensors = None
        if tensor.dtype is torch.bool:
            self.choose()
        elif not tensor.is_floating_point() and "+=" not in source_lines.text():
            self.escape()
        return made_up.mark(found)
