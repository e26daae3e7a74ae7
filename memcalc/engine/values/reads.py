"""Finds the lines that read made-up numbers, and the branches that depend on them.

`Tensor.item()` returns a float or int of a subclass that marks it as made up, and so do
computations with it. A comparison with one is a decision: its line is reported. A program can run
again with the decisions of one line reversed.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from memcalc.engine import source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.host_view import is_plain, tensors_in
from memcalc.engine.packages import deepspeed
from memcalc.engine.patches import Patches
from memcalc.engine.values import marked, threads, uses
from memcalc.engine.values.known import KNOWN, Numbers

_C: Any = torch._C
_TENSORBOARD = "torch.utils.tensorboard.writer"
_WANDB = "wandb.integration.torch.wandb_torch"
_ENDLESS = 1_000
"""Equal decisions in a row after which a loop that waits for the opposite one gets it."""
_LONG = 64
"""Turns of a loop whose condition goes the other way: those that it makes at most, if not itself
bounded."""
_ENDLESS_AGAIN = 16
"""The same for a line whose loop has run so long once: routers may wait in every layer."""
RULE = (
    "`.item()` and similar return real values of data that your code copied to the GPU and of what "
    "follows from it"
)
UNKNOWN = (
    "computed numbers read as made-up ones between 0.1 and 0.9 (at {}); nothing is decided by them"
)
LIMITED = "numbers of large tensors were computed for 20 s and up to 1 GB: unknown from {} on"
NOTHING = "every number read from the GPU is 0 here: this system refuses to map its addresses"


class Reads:
    """The lines of a program that read unknown numbers, and those that decide by one."""

    def __init__(self, say: Callable[[str], None], numbers: Numbers) -> None:
        self._say, self._numbers = say, numbers
        self.opposite: Mapping[str, bool] = {}
        """The lines whose decisions are reversed, and whose masks keep everything; True: one that
        stays in its loop."""
        self.lines: dict[str, None] = {}
        self.escapes: dict[str, None] = {}
        """Those of the lines whose numbers lose the mark of being made up."""
        self.decisions: dict[str, bool] = {}
        """The lines at which a branch, or a mask's result size, depends on unknown numbers; True:
        one that left its loop."""
        self._limits: dict[str, None] = {}
        self._alike: Counter[tuple[str, bool]] = Counter()
        """The number of equal decisions of a line in a row."""
        self._endless: dict[str, int] = {}
        """The decisions in a row after which a line's loop ends, if it has once."""
        self._thread = threading.local()
        self._follow_tensors: Callable[[], None] | None = None

    def install(self, patches: Patches) -> None:
        """Patch ``item`` and similar methods to mark the unknown numbers that they read."""
        marked.install(patches, self)
        self._follow_tensors = functools.partial(marked.follow_tensors, patches)
        for name in ("item", "__bool__", "tolist"):
            patches.set(torch.Tensor, name, self._wrap_reader(getattr(torch.Tensor, name)))
        for name in ("numpy", "__array__"):
            patches.wrap(torch.Tensor, name, self._leave_pytorch)
        for owner, name in ((torch.Tensor, "__repr__"), (torch, "save")):
            patches.wrap(owner, name, self._call_display)
        patches.wrap_later("safetensors.torch", "save_file", self._call_display)
        patches.wrap_later(_WANDB, "TorchHistory.log_tensor_stats", self._call_display)
        for name in deepspeed.NORMS:
            patches.wrap_later(deepspeed.UTILS, name, self._call_display)
        for name in ("add_scalar", "add_scalars", "add_histogram"):
            patches.wrap_later(_TENSORBOARD, f"SummaryWriter.{name}", self._call_display)
        if hasattr(torch.serialization, "add_safe_globals"):
            # A marked number is saved as a call of its plain type.
            torch.serialization.add_safe_globals([float, int])

    def note(self) -> None:
        """Record that this thread reads an unknown number, with the user's line."""
        self._thread.count = self._count() + 1
        line = source_lines.find_line()
        self.lines[line or "PyTorch's own code"] = None
        if not getattr(self._thread, "marks", False):
            self.escape()

    def escape(self, *, follows: bool = False) -> None:
        """Record that a number loses its mark of being made up, with the user's line.

        A value that the source only prints decides nothing; ``follows``: see ``is_only_shown``.
        """
        line = self._deciding()
        if line and not uses.is_only_shown(source_lines.users_frame(), marked=follows):
            self.escapes[line] = None

    def take_size(self) -> None:
        """Record that a result's size depends on unknown numbers, with the user's line."""
        if line := self._deciding():
            self.escapes[line] = None

    def write(self) -> None:
        """Record that a number becomes text, if the program's source reads numbers from text."""
        if source_lines.users_frame(direct=True) is not None and uses.parses_text():
            self.escape()

    def mark_tensors(self, made: Any) -> None:
        """Mark tensors as made up that were computed from a made-up number."""
        for one in tensors_in((made,)):
            if is_plain((one,)) and not internals.is_functorch_tensor(one):
                self._numbers.mark(one, made_up=True)

    def decide(self, found: bool, frame: FrameType | None) -> bool:
        """Record a decision by an unknown number, and return its outcome.

        Args:
            found: the outcome with the made-up number.
            frame: the frame of the code that tests it.

        Returns:
            The outcome; its opposite for a reversed line, or the one that stays in its loop; or the
            one that does not raise.
        """
        if (fails := uses.failing_value(frame)) is not None:
            return not fails
        if line := self._deciding():
            stays, most = uses.continuing_value(frame), self._endless.get(line, _ENDLESS)
            self.decisions[line] = self.decisions.get(line, False) or stays is (not found)
            if self.opposite.get(line) and stays is not None:
                found, most = stays, _LONG
            elif line in self.opposite:
                found = not found
            self._alike[line, not found] = 0
            self._alike[line, found] += 1
            if self._alike[line, found] >= most and uses.waits(frame):
                self._endless[line], self._alike[line, found] = _ENDLESS_AGAIN, 0
                return not found
        return found

    def choose(self) -> bool:
        """Record that a mask of unknown numbers decides a result's size.

        Returns:
            True if the mask keeps everything in this run.
        """
        line = self._deciding()
        if line:
            self.decisions.setdefault(line, False)
        return line in self.opposite

    def _deciding(self) -> str:
        """Return the user's line that decides, or "" if numbers are only printed or saved."""
        return "" if getattr(self._thread, "shows", False) else source_lines.find_line()

    def _call_display(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function that prints or saves numbers, without recording decisions."""
        self._thread.shows = True
        try:
            return original(*args, **kwargs)
        finally:
            self._thread.shows = False

    def limit(self) -> None:
        """Record that numbers stay unknown because computing them takes too long."""
        if line := source_lines.find_line():
            self._limits[line] = None

    def report_no_mapping(self) -> None:
        """Report that all numbers read as 0 on this system."""
        self._say(NOTHING)

    def end(self) -> None:
        """Report the lines that read unknown numbers."""
        self._say(RULE)
        if self._limits:
            self._say(LIMITED.format(source_lines.join_lines(self._limits)))
        if self.lines and not (self.decisions or self.escapes):
            self._say(UNKNOWN.format(source_lines.join_lines(self.lines)))

    def _count(self) -> int:
        """Return the number of unknown values that this thread has read."""
        return getattr(self._thread, "count", 0)

    def _wrap_reader(self, original: Any) -> Callable[[torch.Tensor], Any]:
        """Return a tensor's method that marks what it reads, if that is unknown."""
        guard, keys, host_marks = _C._ExcludeDispatchKeyGuard, threads.keys(), self._numbers.on_host

        @functools.wraps(original)
        def method(tensor: torch.Tensor) -> Any:
            if type(tensor) is torch.Tensor and tensor.is_cpu and not host_marks:
                # Optimizers read a step count for each parameter.
                with guard(keys):
                    return original(tensor)
            if not (tensor.is_cuda or tensor.is_cpu):
                return original(tensor)
            before, self._thread.marks = self._count(), True
            try:
                found = original(tensor)
                if tensor.is_cpu and self._numbers.state(tensor) != KNOWN:
                    self.note()
            finally:
                self._thread.marks = False
            if self._count() == before:
                return found
            return self._mark(found, tensor, sys._getframe(1))

        return method

    def _leave_pytorch(self, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a tensor as a NumPy array, and record a read if it is unknown."""
        if tensor.is_cpu and self._numbers.state(tensor) != KNOWN:
            self.note()
        return original(tensor, *args, **kwargs)

    def _mark(self, found: Any, tensor: torch.Tensor, frame: FrameType) -> Any:
        """Return a value that was read, marked as made up; a boolean is a decision."""
        if isinstance(found, bool):
            return self.decide(found, frame)
        if self._follow_tensors is not None:
            self._follow_tensors()
            self._follow_tensors = None
        if tensor.dtype is torch.bool:
            self.choose()
        elif not tensor.is_floating_point():
            self.escape(follows=True)
        elif uses.takes_plain_numbers():
            self.escape()
        return marked.mark(found)
