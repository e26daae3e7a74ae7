"""Numbers of Python that know that they are made up, as are numbers computed from them.

Each is a float or an int to all code. Comparing one is a decision. Where code takes its plain
value, it escapes: its decisions are not seen. So does each integer that is computed from made-up
ones, because PyTorch and Python take it as a size without asking.
"""

import json
import math
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Protocol

import torch

from memcalc.engine.patches import Patches


class Follower(Protocol):
    """Notes what made-up numbers do."""

    def decide(self, found: bool, frame: FrameType | None) -> bool:
        """Note a decision and return its outcome."""

    def escape(self) -> None:
        """Note that a number is no longer known to be made up."""

    def write(self) -> None:
        """Note that a number becomes text, or is pickled."""

    def mark_tensors(self, made: Any) -> None:
        """Note that tensors follow from a made-up number."""


_follower: Follower | None = None


def install(patches: Patches, follower: Follower) -> None:
    """Patch functions to keep the mark of made-up numbers, or to report to a follower."""
    global _follower
    _follower = follower
    patches.also(_leave)
    for name in _MATH.split():
        if hasattr(math, name):
            patches.wrap(math, name, _keep_mark)
    for name in ("dump", "dumps"):
        # The encoder in C asks no number for its text.
        patches.wrap(json, name, _write)
    patches.when_imported("statistics", lambda module: _follow_statistics(patches, module))
    patches.when_imported("yaml", _write_plain_yaml)
    for package, names in _TABLES.items():
        for name in names:
            patches.wrap_later(package, name, _take)


def follow_tensors(patches: Patches) -> None:
    """Mark tensors that are made of made-up numbers: called when there is one."""
    for name in ("tensor", "as_tensor", "full"):
        patches.wrap(torch, name, _make_tensor)


def _leave() -> None:
    """Stop reporting made-up numbers."""
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


def _plain(value: Any) -> Any:
    """Return numbers without the mark of being made up."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(_plain, value))
    if kind is MadeUpFloat:
        return float.__float__(value)
    return int.__int__(value) if kind is MadeUpInt else value


def _keep_mark(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with plain numbers; mark the result if an argument was made up."""
    if _is_made_up(args):
        return mark(original(*_plain(args), **kwargs))
    return original(*args, **kwargs)


def _take(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that keeps plain numbers, and report made-up ones among its arguments."""
    if _follower is not None and _holds_made_up((args, kwargs)):
        _follower.escape()
    return original(*args, **kwargs)


def _write(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that writes numbers as text, and report made-up ones."""
    if _follower is not None and _holds_made_up(args):
        _follower.write()
    return original(*args, **kwargs)


def _holds_made_up(value: Any, depth: int = 6) -> bool:
    """Return True if a value, or nested lists and dicts of it, has a made-up number."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return _is_made_up(value)
    return depth > 0 and any(_holds_made_up(one, depth - 1) for one in value)


def _make_tensor(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function that makes tensors, and mark them if an argument is made up."""
    made = original(*args, **kwargs)
    if _follower is not None and _is_made_up(args):
        _follower.mark_tensors(made)
    return made


def _call_torch(_: type, function: Any, __: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call a function of PyTorch that was given a made-up number (``__torch_function__``)."""
    kwargs = {name: _plain(value) for name, value in (kwargs or {}).items()}
    made = function(*_plain(args), **kwargs)
    if _follower is not None:
        _follower.mark_tensors(args[0] if made is None else made)
    return made


_TABLES = {
    "pandas": ("DataFrame.__init__", "DataFrame.__setitem__", "Series.__init__"),
    "pandas.core.indexing": ("_LocationIndexer.__setitem__",),
    "polars": ("DataFrame.__init__", "Series.__init__"),
}
"""Functions that take plain values of numbers in compiled code, by package."""
_MATH = """
exp exp2 expm1 log log2 log10 log1p sqrt cbrt pow fabs fmod fsum dist hypot copysign sin cos tan
tanh atan atan2 erf
"""


def _follow_statistics(patches: Patches, module: ModuleType) -> None:
    for name in module.__all__:
        if name.islower():
            patches.wrap(module, name, _keep_mark)


def _decides(name: str, plain: type) -> Callable[[Any, Any], Any]:
    """Return a comparison method that reports its outcome as a decision."""
    compare = getattr(plain, name)
    exact = plain is float and name in ("__eq__", "__ne__")

    def method(self: Any, other: Any) -> Any:
        found = compare(self, other)
        known = found is NotImplemented or exact or _is_no_limit(other)
        if known or _follower is None:
            return found
        return _follower.decide(found, sys._getframe(1))

    return method


def _is_no_limit(other: Any) -> bool:
    """Return True if a number is infinite or NaN, so that all made-up ones compare alike."""
    return isinstance(other, float) and not math.isfinite(other)


def _computes(name: str, plain: type) -> Callable[..., Any]:
    """Return an arithmetic method whose result is marked as made up."""
    compute = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        found = mark(compute(self, *others))
        return escape(found) if plain is float and type(found) is MadeUpInt else found

    return method


def _escapes(name: str, plain: type) -> Callable[..., Any]:
    """Return a conversion method that reports that the mark is lost."""
    take = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        return escape(take(self, *others))

    return method


def _shows(name: str, plain: type) -> Callable[..., Any]:
    """Return a formatting method that reports that the number becomes text."""
    show = getattr(plain, name)

    def method(self: Any, *others: Any) -> Any:
        if _follower is not None:
            _follower.write()
        return show(self, *others)

    return method


def _truth(plain: type) -> Callable[[Any], bool]:
    """Return a ``__bool__`` method that reports an integer's truth as a decision."""

    def method(self: Any) -> bool:
        found = bool(plain.__bool__(self))  # type: ignore[attr-defined]
        if plain is float or _follower is None:
            return found
        return _follower.decide(found, sys._getframe(1))

    return method


def _compute_array(self: Any, function: Any, way: str, *args: Any, **kwargs: Any) -> Any:
    """Implement ``__array_ufunc__`` with plain numbers, and report that the mark is lost."""
    return escape(getattr(function, way)(*_plain(args), **kwargs))


def _reduce(self: Any, _: Any) -> tuple[type, tuple[float]]:
    if _follower is not None:
        _follower.write()
    plain = _plain(self)
    return type(plain), (plain,)


_COMPARISONS = "lt le gt ge eq ne".split()
_ARITHMETIC = """
add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow divmod rdivmod neg
pos abs round floor ceil lshift rlshift rshift rrshift and rand or ror xor rxor
""".split()
_PLAIN = ("__float__", "__int__", "__trunc__", "as_integer_ratio")


def _members(plain: type) -> dict[str, Any]:
    """Return the attributes of a class of made-up numbers over float or int."""
    names = (f"__{name}__" for name in _ARITHMETIC)
    return {
        **{f"__{name}__": _decides(f"__{name}__", plain) for name in _COMPARISONS},
        **{name: _computes(name, plain) for name in names if hasattr(plain, name)},
        **{name: _escapes(name, plain) for name in _PLAIN},
        **{name: _shows(name, plain) for name in ("__format__", "__str__", "__repr__")},
        "__slots__": (),
        "__module__": "builtins",
        "__bool__": _truth(plain),
        "__hash__": plain.__hash__,
        "__reduce_ex__": _reduce,
        "__deepcopy__": lambda self, _: self,
        "__array_ufunc__": _compute_array,
    }


MadeUpFloat = type(
    "float", (float,), {**_members(float), "__torch_function__": classmethod(_call_torch)}
)
"""A float that nobody computed."""
MadeUpInt = type("int", (int,), _members(int))
"""A whole number that nobody computed: PyTorch takes it as a size, and is not asked."""


def _write_plain_yaml(yaml: Any) -> None:
    """Write made-up numbers to YAML as plain ones."""
    represented = yaml.representer.SafeRepresenter
    for made, plain in ((MadeUpFloat, "represent_float"), (MadeUpInt, "represent_int")):
        for dumper in (yaml.SafeDumper, yaml.Dumper):
            dumper.add_representer(made, getattr(represented, plain))
