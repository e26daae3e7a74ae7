"""Where a program reads numbers that nobody computed, and which of its branches depend on them.

A number that `Tensor.item()` reads is an ordinary float or int that knows that it is made up, and
so are numbers computed from it. Comparing one is a decision: the line that decides is named. A
program can be run again with the decisions of one line taken the other way.
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


_PASSES = 16
"""Passes after which a loop ends that goes on by unknown numbers: one takes what all do."""


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
        self._thread = threading.local()

    def install(self, patches: Patches) -> None:
        """Mark numbers that are read from now on."""
        _Made.reads = self
        patches.also(lambda: setattr(_Made, "reads", None))
        for name in ("item", "__bool__", "tolist"):
            patches.set(torch.Tensor, name, self._marking(getattr(torch.Tensor, name)))
        for owner, name in ((torch.Tensor, "__repr__"), (torch, "save")):
            patches.wrap(owner, name, self._shown)
        patches.wrap_later("safetensors.torch", "save_file", self._shown)
        if hasattr(torch.serialization, "add_safe_globals"):
            # A marked number is saved as a call of its plain type.
            torch.serialization.add_safe_globals([float, int])
        patches.when_imported("yaml", _write_plain_yaml)

    def note(self) -> None:
        """A number that is not known is read in this thread."""
        self._thread.count = self._count() + 1
        line = source_lines.line()
        self.lines[line or "PyTorch's own code"] = None
        if line and not getattr(self._thread, "marks", False) and self._deciding():
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
        return self._converge(found, frame)

    def _converge(self, found: bool, frame: FrameType | None) -> bool:
        """Return a decision, or its opposite where a loop has gone on by it for long enough."""
        place = (frame.f_code, frame.f_lasti) if frame is not None else None
        if place is None or checks.repeating(*place) is not found:
            return found
        passes: dict[Any, int] = vars(self._thread).setdefault("passes", {})
        passes[place] = passes.get(place, 0) + 1
        if passes[place] < _PASSES:
            return found
        del passes[place]
        return not found

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
        if self.lines and not self._decisions:
            self._say(UNKNOWN.format(source_lines.listed(self.lines)))

    def _count(self) -> int:
        return getattr(self._thread, "count", 0)

    def _marking(self, original: Any) -> Callable[[torch.Tensor], Any]:
        """Return a tensor's method that marks what it reads, if that is unknown."""
        decides = original.__name__ == "__bool__"
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
            return self.decide(found, sys._getframe(1)) if decides else _marked(found)

        return method


def _marked(found: Any) -> Any:
    """Return numbers, alone or in lists, that know that they are made up."""
    if type(found) is float:
        return MadeUpFloat(found)
    if type(found) is int:
        return MadeUpInt(found)
    return [_marked(one) for one in found] if isinstance(found, list) else found


class _Made:
    """What made-up numbers have in common."""

    __slots__ = ()
    reads: ClassVar[Reads | None] = None

    def __reduce_ex__(self: Any, _: Any) -> tuple[type, tuple[float]]:
        return (float, (float(self),)) if isinstance(self, float) else (int, (int(self),))


def _decides(name: str, plain: type) -> Callable[[Any, Any], Any]:
    compare = getattr(plain, name)
    exact = plain is float and name in ("__eq__", "__ne__")

    def method(self: Any, other: Any) -> Any:
        found = compare(self, other)
        known = found is NotImplemented or exact or _is_no_limit(other)
        if known or _Made.reads is None:
            return found
        return _Made.reads.decide(found, sys._getframe(1))

    return method


def _is_no_limit(other: Any) -> bool:
    """Return whether a number is infinite or NaN: each made-up one compares with it alike."""
    return isinstance(other, float) and not math.isfinite(other)


def _computes(name: str, plain: type) -> Callable[..., Any]:
    compute = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        return _marked(compute(self, *others))

    return method


def _truth(plain: type) -> Callable[[Any], bool]:
    def method(self: Any) -> bool:
        found = bool(plain(self))
        if plain is float or _Made.reads is None:
            return found
        return _Made.reads.decide(found, sys._getframe(1))

    return method


_COMPARISONS = "lt le gt ge eq ne".split()
_ARITHMETIC = """
add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs round
""".split()


def _members(plain: type) -> dict[str, Any]:
    decisions = {f"__{name}__": _decides(f"__{name}__", plain) for name in _COMPARISONS}
    arithmetic = {f"__{name}__": _computes(f"__{name}__", plain) for name in _ARITHMETIC}
    own = {
        "__slots__": (),
        "__module__": "builtins",
        "__bool__": _truth(plain),
        "__hash__": plain.__hash__,
    }
    return {**decisions, **arithmetic, **own}


MadeUpFloat = type("float", (_Made, float), _members(float))
"""A float that nobody computed."""
MadeUpInt = type("int", (_Made, int), _members(int))
"""A whole number that nobody computed."""


def _write_plain_yaml(yaml: Any) -> None:
    """Made-up numbers are written to YAML as plain ones."""
    represented = yaml.representer.SafeRepresenter
    for made, plain in ((MadeUpFloat, "represent_float"), (MadeUpInt, "represent_int")):
        for dumper in (yaml.SafeDumper, yaml.Dumper):
            dumper.add_representer(made, getattr(represented, plain))
