"""Symbols for batch and sequence: sizes as formulas, decisions as conditions, in one simulated run.

PyTorch's own symbolic shapes do the work: under a fake mode with a ``ShapeEnv`` tensors have sizes
that are expressions, and every comparison that the program or PyTorch makes on one becomes a
guard. The run takes the branches of one point, the hint; where the guards hold, any other point
takes the same ones. Sizes 0 and 1 broadcast, so a dimension of one is never a symbol.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import sympy  # type: ignore[import-untyped]
import torch

from memcalc.kernels.attention import call as attention
from memcalc.kernels.attention.choice import choose
from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import Allocations
from memcalc.kernels.target import Target, WatchedTarget
from memcalc.symbolic.records import AttentionChoice, Kind, Point, code
from memcalc.trace.torch_private.symbols import ConstantSource, DimDynamic, PythonPrinter, ShapeEnv

_INT_MAX = str((1 << 63) - 1)
"""A full slice asks whether a size is below this: always."""


class Symbols:
    """What a run on symbols brings to light; the interface of ``KernelMemory`` too."""

    def __init__(self, point: Point, torch: tuple[int, int], fixed: int | None = None) -> None:
        """Symbols whose hint is a point.

        Args:
            point: the branches of this one are taken.
            torch: PyTorch's version.
            fixed: the only sequence there is, for a model that takes one.
        """
        self.torch = torch
        # Equal numbers are different symbols; they need not stay equal elsewhere.
        self.env = ShapeEnv(duck_shape=False)
        self._names: dict[Any, Any] = {}
        self._hints: dict[Any, int] = {}
        self._least: list[str] = []
        self.batch: Any = self._symbol("b", point.batch)
        self.seq: Any = fixed or self._symbol("s", point.seq)
        if fixed:
            self._least.append(f"s == {fixed}")
        self._sizes: dict[str, int] = {}
        self._calls: dict[KernelCall, int] = {}
        self._choices: dict[str, AttentionChoice] = {}
        self.asked: dict[str, str] = {}
        """What else was asked of the target, and what that is, in words of Python."""
        self._printer = PythonPrinter()
        self._texts: dict[Any, str] = {}

    def _symbol(self, name: str, value: int | None) -> Any:
        if value is None:
            return None
        if value < 2:
            self._least.append(f"{name} == {value}")
            return value
        self._least.append(f"{name} >= 2")
        source = ConstantSource(name)
        symbol = self.env.create_symbol(
            value, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        self._hints[symbol] = value
        self._names[symbol] = sympy.Symbol(name, integer=True, positive=True)
        return self.env.create_symintnode(symbol, hint=value, source=source)

    def size(self, nbytes: Any) -> int:
        """Bytes to write down: themselves, or the number of their formula."""
        known = self._number(nbytes)
        if isinstance(known, int):
            return known
        return code(Kind.SIZE, self._sizes.setdefault(known, len(self._sizes)))

    def transient(self, call: KernelCall) -> tuple[Allocations, Allocations]:
        """A kernel's call as two numbers, for before and after its outputs."""
        number = self._call(call)
        return (code(Kind.BEFORE, number),), (code(Kind.AFTER, number),)

    def persistent(self, call: KernelCall) -> Allocations:
        """The same for what a library keeps."""
        return (code(Kind.PERSISTENT, self._call(call)),)

    def choose(
        self,
        call: attention.AttentionCall,
        target: Target,
        allowed: frozenset[attention.Backend] | None,
    ) -> attention.Backend:
        """Choose an attention kernel at the hint, and write the choice down."""
        fields = msgspec.structs.asdict(call)
        chosen = choose(
            attention.AttentionCall(**{name: _hint(value) for name, value in fields.items()}),
            target,
            allowed,
        )
        dtype = fields.pop("dtype")
        choice = AttentionChoice(
            call={name: self._number(value) for name, value in fields.items()},
            dtype=dtype,
            allowed=None if allowed is None else tuple(sorted(allowed)),
            chosen=chosen.value,
        )
        self._choices[repr(choice)] = choice
        return chosen

    def watched(self, target: Target) -> Target:
        """The target, as long as what is asked of it is to be written down."""
        return WatchedTarget(  # type: ignore[return-value]
            target, lambda name, value: self.asked.update({name: repr(value)})
        )

    @property
    def numbers(self) -> tuple[Callable[[Any], int], ...]:
        """What symbols may be: the hint, and two other points."""
        return tuple(
            functools.partial(_at, {symbol: change(hint) for symbol, hint in self._hints.items()})
            for change in (int, _more, _less)
        )

    @property
    def sizes(self) -> tuple[str, ...]:
        """Formulas of sizes, by number."""
        return tuple(self._sizes)

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """Kernel calls, by number."""
        return tuple(self._calls)

    @property
    def choices(self) -> tuple[AttentionChoice, ...]:
        """The attention kernels that ran, each kind of call once."""
        return tuple(self._choices.values())

    def conditions(self) -> tuple[str, ...]:
        """Where all of it holds."""
        guards = (self._text(guard.expr) for guard in self.env.guards)
        return (*self._least, *(text for text in dict.fromkeys(guards) if _INT_MAX not in text))

    def _call(self, call: KernelCall) -> int:
        known = KernelCall(name=call.name, args=self._number(call.args))
        return self._calls.setdefault(known, len(self._calls))

    def _number(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(self._number(item) for item in value)
        if isinstance(value, torch.SymInt):
            if (constant := value.node.maybe_as_int()) is not None:
                return constant
            return self._text(value.node.expr)
        if isinstance(value, torch.SymBool):
            # To be asked makes it a condition.
            return bool(value)
        return value

    def _text(self, expression: Any) -> str:
        """One text for what PyTorch may say as ``3*b*s`` or as ``3*s + 3*s*(b - 1)``."""
        known = self._texts.get(expression)
        if known is None:
            named = expression.xreplace(self._names)
            if isinstance(named, sympy.Expr):
                named = sympy.expand(named)
            text = str(self._printer.doprint(named)).replace("torch.sym_float(", "float(")
            known = self._texts[expression] = text
        return known


def _more(hint: int) -> int:
    return hint + 1


def _less(hint: int) -> int:
    return max(hint // 2, 2)


def _at(values: dict[Any, int], size: Any) -> int:
    return int(size.node.expr.xreplace(values)) if isinstance(size, torch.SymInt) else size


def _hint(value: Any) -> Any:
    return value.node.hint if isinstance(value, torch.SymInt) else value
