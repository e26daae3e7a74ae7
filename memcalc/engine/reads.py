"""Finds the lines that read made-up numbers, and the branches that depend on them.

`Tensor.item()` returns a float or int of a subclass that marks it as made up, and so do
computations with it. A comparison with one is a decision: its line is reported. A program can run
again with the decisions of one line reversed.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import torch

from memcalc.engine import checks, following, source_lines
from memcalc.engine.patches import Patches

_C: Any = torch._C
RULE = (
    "`.item()` and the like read true values of data that the code put on the GPU and of what "
    "follows from it"
)
UNKNOWN = (
    "computed numbers read as made-up ones between 0.1 and 0.9 (at {}); PyTorch and Python decide "
    "nothing by them, and what `math`, NumPy and pandas make of them is not followed"
)
LIMITED = "numbers of large tensors were computed for 20 s, then no more: unknown from {} on"
NOTHING = "every number read from the GPU is 0 here: this system refuses to map its addresses"


class Reads:
    """The lines of a program that read unknown numbers, and those that decide by one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.opposite = ""
        """The line whose decisions are reversed, and whose masks keep everything."""
        self.lines: dict[str, None] = {}
        self.escapes: dict[str, None] = {}
        """Those of the lines whose numbers lose the mark of being made up."""
        self._decisions: dict[str, None] = {}
        self._limits: dict[str, None] = {}
        self._thread = threading.local()

    def install(self, patches: Patches) -> None:
        """Patch the methods that read numbers, so that they mark made-up ones."""
        _MadeUp.reads = self
        patches.also(lambda: setattr(_MadeUp, "reads", None))
        for name in ("item", "__bool__", "tolist"):
            patches.set(torch.Tensor, name, self._wrap_reader(getattr(torch.Tensor, name)))
        for owner, name in ((torch.Tensor, "__repr__"), (torch, "save")):
            patches.wrap(owner, name, self._call_display)
        patches.wrap_later("safetensors.torch", "save_file", self._call_display)
        if hasattr(torch.serialization, "add_safe_globals"):
            # A marked number is saved as a call of its plain type.
            torch.serialization.add_safe_globals([float, int])
        patches.when_imported("yaml", _write_plain_yaml)

    def note(self) -> None:
        """Record that this thread reads an unknown number, with the user's line."""
        self._thread.count = self._count() + 1
        line = source_lines.find_line()
        self.lines[line or "PyTorch's own code"] = None
        if line and not getattr(self._thread, "marks", False) and self._deciding():
            self.escapes[line] = None

    def decide(self, found: bool, frame: FrameType | None) -> bool:
        """Record a decision by an unknown number, and return its outcome.

        Args:
            found: the outcome with the made-up number.
            frame: the frame of the code that tests it.

        Returns:
            The outcome; its opposite for the reversed line; or the one that does not raise.
        """
        if (fails := checks.failing_value(frame)) is not None:
            return not fails
        if line := self._deciding():
            self._decisions[line] = None
            return found is (line != self.opposite)
        return found

    def choose(self) -> bool:
        """Record that a mask of unknown numbers decides a result's size.

        Returns:
            True if the mask keeps everything in this run.
        """
        line = self._deciding()
        if line:
            self._decisions[line] = None
        return bool(line) and line == self.opposite

    def _deciding(self) -> str:
        """Return the line that decides, or "" if numbers are only printed or saved."""
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

    @property
    def decisions(self) -> tuple[str, ...]:
        """The lines at which a branch, or a mask's result size, depends on unknown numbers."""
        return tuple(self._decisions)

    def report_no_mapping(self) -> None:
        """Report that all numbers read as 0 on this system."""
        self._say(NOTHING)

    def end(self) -> None:
        """Report the lines that read unknown numbers."""
        self._say(RULE)
        if self._limits:
            self._say(LIMITED.format(source_lines.join_lines(self._limits)))
        if self.lines and not self._decisions:
            self._say(UNKNOWN.format(source_lines.join_lines(self.lines)))

    def _count(self) -> int:
        return getattr(self._thread, "count", 0)

    def _wrap_reader(self, original: Any) -> Callable[[torch.Tensor], Any]:
        """Return a wrapper of a tensor's method that marks unknown numbers that it reads."""
        decides = original.__name__ == "__bool__"
        guard, keys = _C._ExcludeDispatchKeyGuard, following.keys()

        @functools.wraps(original)
        def method(tensor: torch.Tensor) -> Any:
            if type(tensor) is torch.Tensor and tensor.is_cpu:
                # Optimizers read a step count for each parameter.
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
            return self.decide(found, sys._getframe(1)) if decides else _mark_made_up(found)

        return method


def _mark_made_up(found: Any) -> Any:
    """Return a number, or a list of numbers, as instances of the made-up types."""
    if type(found) is float:
        return MadeUpFloat(found)
    if type(found) is int:
        return MadeUpInt(found)
    return [_mark_made_up(one) for one in found] if isinstance(found, list) else found


class _MadeUp:
    """The base of both types of made-up numbers."""

    __slots__ = ()
    reads: ClassVar[Reads | None] = None

    def __reduce_ex__(self: Any, _: Any) -> tuple[type, tuple[float]]:
        return (float, (float(self),)) if isinstance(self, float) else (int, (int(self),))


def _make_comparison(name: str, plain: type) -> Callable[[Any, Any], Any]:
    """Return a comparison method that records a decision."""
    compare = getattr(plain, name)
    exact = plain is float and name in ("__eq__", "__ne__")

    def method(self: Any, other: Any) -> Any:
        found = compare(self, other)
        known = found is NotImplemented or exact or _is_no_limit(other)
        if known or _MadeUp.reads is None:
            return found
        return _MadeUp.reads.decide(found, sys._getframe(1))

    return method


def _is_no_limit(other: Any) -> bool:
    """Return True if a number is infinite or NaN: comparisons with it do not depend on values."""
    return isinstance(other, float) and not math.isfinite(other)


def _make_arithmetic(name: str, plain: type) -> Callable[..., Any]:
    """Return an arithmetic method whose result is marked as made up."""
    compute = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        return _mark_made_up(compute(self, *others))

    return method


def _make_truth(plain: type) -> Callable[[Any], bool]:
    def method(self: Any) -> bool:
        found = bool(plain(self))
        if plain is float or _MadeUp.reads is None:
            return found
        return _MadeUp.reads.decide(found, sys._getframe(1))

    return method


_COMPARISONS = "lt le gt ge eq ne".split()
_ARITHMETIC = """
add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs round
""".split()


def _make_members(plain: type) -> dict[str, Any]:
    decisions = {f"__{name}__": _make_comparison(f"__{name}__", plain) for name in _COMPARISONS}
    arithmetic = {f"__{name}__": _make_arithmetic(f"__{name}__", plain) for name in _ARITHMETIC}
    own = {
        "__slots__": (),
        "__module__": "builtins",
        "__bool__": _make_truth(plain),
        "__hash__": plain.__hash__,
    }
    return {**decisions, **arithmetic, **own}


MadeUpFloat = type("float", (_MadeUp, float), _make_members(float))
"""The type of made-up floats."""
MadeUpInt = type("int", (_MadeUp, int), _make_members(int))
"""The type of made-up integers."""


def _write_plain_yaml(yaml: Any) -> None:
    """Make PyYAML write made-up numbers as plain ones."""
    represented = yaml.representer.SafeRepresenter
    for made, plain in ((MadeUpFloat, "represent_float"), (MadeUpInt, "represent_int")):
        for dumper in (yaml.SafeDumper, yaml.Dumper):
            dumper.add_representer(made, getattr(represented, plain))
