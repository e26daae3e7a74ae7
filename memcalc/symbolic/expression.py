"""Formulas of batch ``b`` and sequence ``s`` as text: checked word by word, then compiled.

They come from files, so nothing but arithmetic is let through.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

_NODES = (
    ast.Expression,
    ast.Tuple,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Pow,
    ast.USub,
    ast.UAdd,
    ast.Not,
    ast.And,
    ast.Or,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.Load,
)
_FUNCTIONS = {"max": max, "min": min, "abs": abs, "float": float}
_MATH = {"ceil": math.ceil, "floor": math.floor, "trunc": math.trunc}
_NAMES = ("b", "s")


class FormulaError(Exception):
    """The text is no formula, or it has no whole number as its value."""


def compiled(formulas: Sequence[str]) -> Callable[[int, int], tuple[Any, ...]]:
    """Compile formulas into one function of ``(b, s)`` that gives the values of all.

    Raises:
        FormulaError: a text holds anything but arithmetic of ``b``, ``s`` and numbers.
    """
    source = "(" + "".join(f"({text})," for text in formulas) + ")"
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormulaError(f"not a formula: {error}") from None
    assert isinstance(tree.body, ast.Tuple)
    if len(tree.body.elts) != len(formulas):
        raise FormulaError("a text holds more than one formula")
    _check(tree)
    program = compile(tree, "<formulas>", "eval")
    names = {"__builtins__": {}, "math": _Math, **_FUNCTIONS}

    def values(b: int, s: int) -> tuple[Any, ...]:
        found: tuple[Any, ...] = eval(program, names, {"b": b, "s": s})
        return found

    return values


class _Math:
    ceil = math.ceil
    floor = math.floor
    trunc = math.trunc


def _check(tree: ast.AST) -> None:
    allowed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if node.keywords or not _is_function(node.func):
                raise FormulaError("a formula calls something unknown")
            allowed.update(id(part) for part in ast.walk(node.func))
        elif id(node) in allowed or isinstance(node, _NODES):
            continue
        elif isinstance(node, ast.Constant):
            if type(node.value) not in (int, float, bool):
                raise FormulaError("a formula holds a text")
        elif not (isinstance(node, ast.Name) and node.id in _NAMES):
            raise FormulaError(f"a formula holds {type(node).__name__}")


def _is_function(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "math" and node.attr in _MATH
    return isinstance(node, ast.Name) and node.id in _FUNCTIONS
