"""The variables of a program: which hold tensors on the GPU, and which line fills them."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, TracebackType
from typing import Any, NamedTuple

import torch

from memcalc.engine import source_lines
from memcalc.engine.notes import Notebook
from memcalc.records.trace import EMPTIED, FILLED, GRAPH

_DEEP = 4
"""Containers inside containers that are looked into."""
_CONTAINERS = (dict, list, tuple, deque, set)
_FILLING = ("add", "append", "appendleft", "extend", "insert", "setdefault", "update")
"""Methods that put something into a container."""
_OF_MODULES = ("_parameters", "_buffers", "_modules")


class Scope(NamedTuple):
    """Variables, and the file of the code that holds them."""

    variables: Mapping[str, Any]
    file: str


class Holding(NamedTuple):
    """A tensor, and the variable that holds it."""

    name: str
    """``outs``, or ``trainer.history`` of an object."""
    tensor: Any
    file: str
    """The file that defines the variable, or its object's class."""
    inside: bool
    """True if a container of that name holds it."""


def scopes_of_traceback(trace: TracebackType | None) -> Iterator[Scope]:
    """Yield the scopes of the user's frames in a traceback, the innermost first."""
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    yield from _frame_scopes(reversed(frames))


def running_scopes() -> Iterator[Scope]:
    """Yield the scopes of the user's frames that run in this thread, the innermost first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    yield from _frame_scopes(frames)


def module_scopes() -> Iterator[Scope]:
    """Yield the variables of every module of the user's."""
    for module in list(sys.modules.values()):
        held = _attributes(module)
        file = held.get("__file__")
        if isinstance(file, str) and source_lines.is_users(file):
            yield Scope(held, file)


def _frame_scopes(frames: Iterable[FrameType]) -> Iterator[Scope]:
    for frame in frames:
        file = frame.f_code.co_filename
        if source_lines.is_users(file):
            if frame.f_locals is not frame.f_globals:
                yield Scope(_locals(frame), file)
            yield Scope(frame.f_globals, file)


def _locals(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's variables, of which the frame keeps none.

    Before Python 3.13 a function's frame holds on to those that were read, and to their memory.
    """
    read: Any = frame.f_locals
    found = dict(read)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(read, dict):
        read.clear()
    return found


def holdings(
    scopes: Iterable[Scope], *, empty: set[tuple[str, str]] | None = None
) -> Iterator[Holding]:
    """Yield the tensors that variables hold, in containers and objects as well.

    ``empty`` takes the names and files of containers that hold nothing.
    """
    seen: dict[int, Scope] = {}
    for scope in scopes:
        if id(scope.variables) in seen:
            continue
        seen[id(scope.variables)] = scope
        for name, value in list(scope.variables.items()):
            yield from _search(Holding(name, value, scope.file, inside=False), _DEEP, empty)


def _search(
    one: Holding, depth: int, empty: set[tuple[str, str]] | None = None
) -> Iterator[Holding]:
    """Yield the tensors in a value, to some depth of containers and objects."""
    value: Any = one.tensor
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield one
    elif depth and issubclass(kind, _CONTAINERS):
        held = _list_items(value)
        if not held and empty is not None:
            empty.add((one.name, one.file))
        for inner in held:
            yield from _search(one._replace(tensor=inner, inside=True), depth - 1, empty)
    elif depth and source_lines.is_users(file := _find_file(kind)):
        for name, inner in list(_attributes(value).items()):
            plain = name in _OF_MODULES and isinstance(value, torch.nn.Module)
            of_it = Holding(f"{one.name}.{name}", inner, file, inside=False)
            part = one._replace(tensor=inner) if plain or one.inside else of_it
            yield from _search(part, depth - 1, empty)


def _list_items(container: Any) -> list[Any]:
    """Return the items of a container without calling methods of the program's class."""
    if isinstance(container, dict):
        return list(dict.values(container))
    base: Any = next(kind for kind in _CONTAINERS if isinstance(container, kind))
    return list(base.__iter__(container))


def _attributes(value: object) -> dict[str, Any]:
    """Return the instance attributes of an object without calling the program's code."""
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found


def _find_file(kind: type) -> str:
    """Return the file of a class by one of its functions, or "<unknown>"."""
    files = (one.__code__.co_filename for one in vars(kind).values() if type(one) is FunctionType)
    return next(files, "<unknown>")


def holders(scopes: Iterable[Scope], book: Notebook) -> dict[int, str]:
    """Return names of variables by the addresses of the blocks that they hold.

    The first scope counts; a container's name is followed by the line that fills it.
    """
    found: dict[int, str] = {}
    for one in holdings(scopes):
        for address in book.addresses(one.tensor):
            if address not in found:
                line = filled_at(one.name, one.file) if one.inside else ""
                graph = GRAPH if one.tensor.grad_fn is not None else ""
                found[address] = f"{one.name}{graph}{FILLED}{line}" if line else one.name
    return found


@functools.cache
def filled_at(name: str, file: str) -> str:
    """Return the first line that puts something into a variable, such as ``train.py:14``.

    It is followed by the line that empties the variable, if a loop around both does. Empty: no line
    of this file fills it.
    """
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    wanted, at = name.rpartition(".")[2], Path(file).name
    filled = min((one.lineno for one in ast.walk(tree) if _fills(one, wanted)), default=0)  # type: ignore[attr-defined]
    loops = (one for one in ast.walk(tree) if isinstance(one, ast.For | ast.While))
    around = (one for one in loops if one.lineno < filled <= (one.end_lineno or 0))
    lines = [one.lineno for loop in around for one in ast.walk(loop) if _empties(one, wanted)]  # type: ignore[attr-defined]
    return f"{at}:{filled}" + (f"{EMPTIED}{at}:{min(lines)}" if lines else "") if filled else ""


def _fills(node: ast.AST, name: str) -> bool:
    """Return True if a syntax node puts something into the variable of this name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _FILLING and _root_name(node.func.value) == name
    if isinstance(node, ast.AugAssign):
        return _root_name(node.target) == name
    if not isinstance(node, ast.Assign):
        return False
    targets = [one for one in node.targets if _root_name(one) == name]
    more = isinstance(node.value, ast.BinOp | ast.List | ast.Tuple | ast.Set)
    own = more and any(_root_name(one) == name for one in ast.walk(node.value))
    return any(own or isinstance(one, ast.Subscript) for one in targets)


def _empties(node: ast.AST, name: str) -> bool:
    """Return True if a syntax node clears the variable of this name, or makes it a new one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "clear" and _root_name(node.func.value) == name
    if not isinstance(node, ast.Assign | ast.Delete) or _fills(node, name):
        return False
    return any(_root_name(one) == name for one in node.targets)


def _root_name(node: ast.AST) -> str:
    """Return the variable or attribute that an expression such as ``self.a["b"]`` begins with."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Attribute):
            return node.attr
        else:
            return node.id if isinstance(node, ast.Name) else ""
