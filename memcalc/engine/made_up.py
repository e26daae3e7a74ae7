"""Numbers of Python that know that they are made up, as are numbers computed from them.

Each is a float or an int to all code. Comparing one is a decision. Where code takes its plain
value, it escapes: its decisions are not seen. So does each integer that is computed from made-up
ones, because PyTorch and Python take it as a size without asking.
"""

import math
import re
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Protocol

import torch

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches


class Follower(Protocol):
    """Notes what made-up numbers do."""

    def decide(self, found: bool, frame: FrameType | None) -> bool:
        """Note a decision and return its outcome."""

    def escape(self) -> None:
        """Note that a number is no longer known to be made up."""


_follower: Follower | None = None


def install(patches: Patches, follower: Follower) -> None:
    """Patch math, statistics and yaml for made-up numbers, which report to a follower."""
    global _follower
    _follower = follower
    patches.also(_remove_follower)
    for name in _MATH.split():
        if hasattr(math, name):
            patches.wrap(math, name, _keep_mark)
    patches.when_imported("statistics", lambda module: _follow_statistics(patches, module))
    patches.when_imported("yaml", _write_plain_yaml)


def follow_tensors(patches: Patches) -> None:
    """Patch functions of tensors to report made-up numbers that they take."""
    for name in ("tensor", "as_tensor", "full"):
        patches.wrap(torch, name, _call_reporting)
    for name in ("__setitem__", *(f"__{one}__" for one in _COMPARISONS)):
        patches.wrap(torch.Tensor, name, _call_reporting)


def _remove_follower() -> None:
    global _follower
    _follower = None


def mark(found: Any) -> Any:
    """Return a number, or numbers in lists, marked as made up by their class."""
    if type(found) is float:
        return MadeUpFloat(found)
    if type(found) is int:
        return MadeUpInt(found)
    if type(found) is list or type(found) is tuple:
        return type(found)(map(mark, found))
    return found


def escape(found: Any) -> Any:
    """Report that numbers lose the mark of being made up, and return them."""
    if _follower is not None:
        _follower.escape()
    return found


def _is_made_up(value: Any) -> bool:
    kind = type(value)
    if kind is list or kind is tuple:
        return any(map(_is_made_up, value))
    return kind is MadeUpFloat or kind is MadeUpInt


def _unmark(value: Any) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(_unmark, value))
    if kind is MadeUpFloat:
        return float.__float__(value)
    return int.__int__(value) if kind is MadeUpInt else value


def _keep_mark(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with plain numbers; mark the result if an argument was made up."""
    if _is_made_up(args):
        return mark(original(*_unmark(args), **kwargs))
    return original(*args, **kwargs)


def _call_reporting(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of tensors; report if one of its arguments is made up."""
    if _is_made_up(args):
        escape(None)
    return original(*args, **kwargs)


_MATH = """
exp exp2 expm1 log log2 log10 log1p sqrt cbrt pow fabs fmod fsum dist hypot copysign sin cos tan
tanh atan atan2 erf
"""


def _follow_statistics(patches: Patches, module: ModuleType) -> None:
    for name in module.__all__:
        if name.islower():
            patches.wrap(module, name, _keep_mark)


def _make_comparison(name: str, plain: type) -> Callable[[Any, Any], Any]:
    """Return a comparison method that reports its outcome as a decision."""
    compare = getattr(plain, name)
    exact = plain is float and name in ("__eq__", "__ne__")

    def method(self: Any, other: Any) -> Any:
        found = compare(self, other)
        known = found is NotImplemented or exact or _is_not_finite(other)
        if known or _follower is None:
            return found
        return _follower.decide(found, sys._getframe(1))

    return method


def _is_not_finite(other: Any) -> bool:
    """Return True if a number is infinite or NaN, so that all made-up ones compare alike."""
    return isinstance(other, float) and not math.isfinite(other)


def _make_arithmetic(name: str, plain: type) -> Callable[..., Any]:
    """Return an arithmetic method whose result is marked as made up."""
    compute = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        found = mark(compute(self, *others))
        return escape(found) if plain is float and type(found) is MadeUpInt else found

    return method


def _make_conversion(name: str, plain: type) -> Callable[..., Any]:
    """Return a conversion method that reports that the mark is lost."""
    take = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        return escape(take(self, *others))

    return method


_PARSED = re.compile(r"\b(float|int|Decimal|Fraction|literal_eval|eval)\(")


def _make_formatting(name: str, plain: type) -> Callable[..., Any]:
    """Return a formatting method that reports a lost mark if the user's line parses numbers."""
    show = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        if _PARSED.search(source_lines.text()):
            escape(None)
        return show(self, *others)

    return method


def _make_bool(plain: type) -> Callable[[Any], bool]:
    """Return a ``__bool__`` method that reports an integer's truth as a decision."""

    def method(self: Any) -> bool:
        found = bool(plain.__bool__(self))  # type: ignore[attr-defined]
        if plain is float or _follower is None:
            return found
        return _follower.decide(found, sys._getframe(1))

    return method


def _compute_array(self: Any, function: Any, way: str, *args: Any, **kwargs: Any) -> Any:
    """Implement ``__array_ufunc__`` with plain numbers, and report that the mark is lost."""
    return escape(getattr(function, way)(*_unmark(args), **kwargs))


def _reduce(self: Any, _: Any) -> tuple[type, tuple[float]]:
    plain = _unmark(self)
    return type(plain), (plain,)


_COMPARISONS = "lt le gt ge eq ne".split()
_ARITHMETIC = """
add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow divmod rdivmod neg
pos abs round floor ceil lshift rlshift rshift rrshift and rand or ror xor rxor
""".split()
_PLAIN = ("__float__", "__int__", "__trunc__", "as_integer_ratio")


def _make_members(plain: type) -> dict[str, Any]:
    """Return the attributes of a class of made-up numbers over float or int."""
    names = (f"__{name}__" for name in _ARITHMETIC)
    return {
        **{f"__{name}__": _make_comparison(f"__{name}__", plain) for name in _COMPARISONS},
        **{name: _make_arithmetic(name, plain) for name in names if hasattr(plain, name)},
        **{name: _make_conversion(name, plain) for name in _PLAIN},
        **{name: _make_formatting(name, plain) for name in ("__format__", "__str__", "__repr__")},
        "__slots__": (),
        "__module__": "builtins",
        "__bool__": _make_bool(plain),
        "__hash__": plain.__hash__,
        "__reduce_ex__": _reduce,
        "__array_ufunc__": _compute_array,
    }


MadeUpFloat = type("float", (float,), _make_members(float))
"""A float that nobody computed."""
MadeUpInt = type("int", (int,), _make_members(int))
"""A whole number that nobody computed."""


def _write_plain_yaml(yaml: Any) -> None:
    """Write made-up numbers to YAML as plain ones."""
    represented = yaml.representer.SafeRepresenter
    for made, plain in ((MadeUpFloat, "represent_float"), (MadeUpInt, "represent_int")):
        for dumper in (yaml.SafeDumper, yaml.Dumper):
            dumper.add_representer(made, getattr(represented, plain))
