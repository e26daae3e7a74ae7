"""Finds in the source what becomes of a value: a check, a loop that waits for it, or a print.

A sound program passes its own checks on a GPU. So a check of a number that is not computed here is
assumed to pass: `assert (boxes >= 0).all()`, or `if not valid.all(): raise ValueError(...)`.
"""

from __future__ import annotations

import ast
import bisect
import dis
import functools
import itertools
import linecache
import re
import sys
from types import CodeType, FrameType
from typing import NamedTuple

from memcalc.engine import source_lines
from memcalc.engine.source_lines import called_name

_SHOWS = frozenset(
    """
    print log info debug warning warn error critical exception log_metrics log_dict add_scalar
    add_scalars add_histogram set_description set_description_str set_postfix set_postfix_str
    """.split()
)
"""Names of functions that show a value to people and decide nothing by it."""
_PASS_ON = frozenset(("float", "int", "round", "abs", "str", "repr", "format", "join", "sum"))
"""Names of functions whose result is the value in another form."""
_READS = frozenset(("float", "int", "str", "repr", "format", "numpy", "item", "tolist"))
"""Names of functions whose result is the number that they read, in another form."""
_PARSERS = re.compile(
    r"\b(?:literal_eval|eval|loads?|safe_load|read_(?:csv|json|table|pickle)|loadtxt|genfromtxt"
    r"|fromstring|reader|DictReader|Decimal|Fraction)\("
    r"|\b(?:float|int)\((?:[fru]{0,2}[\"']|(?:str|repr|format)\("
    r"|\w+(?:\)|\[|\.(?:split|strip|group|read|replace|partition|get)\w*\())"
)
"""Finds calls that read numbers from text or files."""
_TAKERS = re.compile(
    r"(?<!np\.)(?<!numpy\.)\b(?:(?:Float|Double|Half|BFloat16|Long|Int)?Tensor|array|pack|pack_into"
    r"|fromlist|c_(?:float|double|long|int))\("
    r"|\b(?:float|int)\([ru]?[\"'][^\"']*%"
)
"""Finds calls that take the plain values of Python's numbers: PyTorch's old constructors, and
``array``, ``struct`` and ``ctypes``."""
_WALKED = 80
"""The most instructions to search for a raise: a message with several values takes about 50."""
_SKIPPED = frozenset(("TO_BOOL", "CACHE", "NOT_TAKEN", "EXTENDED_ARG", "COPY_FREE_VARS", "NOP"))
_ENDS = ("JUMP", "RETURN", "POP_JUMP", "FOR_ITER", "SEND", "YIELD")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)


class _Source(NamedTuple):
    """The syntax tree of a file."""

    expressions: dict[tuple[int | None, ...], ast.expr]
    """The outermost expression at each place."""
    parents: dict[ast.AST, ast.AST]
    loops: list[ast.While | ast.For | ast.AsyncFor]


@functools.lru_cache(maxsize=64)
def _read_source(file: str) -> _Source:
    """Parse a source file, and index its expressions, parents and loops."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    expressions: dict[tuple[int | None, ...], ast.expr] = {}
    parents: dict[ast.AST, ast.AST] = {}
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            parents[child] = node
        if isinstance(node, ast.expr):
            place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
            expressions.setdefault(place, node)
    kinds = ast.While | ast.For | ast.AsyncFor
    return _Source(expressions, parents, [one for one in parents if isinstance(one, kinds)])


@functools.lru_cache(maxsize=4096)
def _find_expression(code: CodeType, at: int) -> tuple[_Source, ast.expr | None]:
    """Return the source of a running instruction, and the expression that it computes or tests."""
    source = _read_source(code.co_filename)
    place = next(itertools.islice(code.co_positions(), at // 2, None), None)
    return source, source.expressions.get(place) if place is not None else None


class _Branch(NamedTuple):
    """The jump that depends on a running condition."""

    instructions: list[dis.Instruction]
    places: dict[int, int]
    """Numbers of the instructions, by offset."""
    number: int

    @property
    def jump(self) -> dis.Instruction:
        """The jump itself."""
        return self.instructions[self.number]

    @property
    def jumps_if(self) -> bool:
        """The value of the condition that jumps."""
        return self.jump.opname.endswith("TRUE")


@functools.lru_cache(maxsize=4096)
def _find_branch(code: CodeType, at: int) -> _Branch | None:
    """Return the conditional jump that follows the instruction at an offset, or None."""
    instructions = list(dis.get_instructions(code))
    places = {one.offset: number for number, one in enumerate(instructions)}
    # A call of Python's own is left at its last cache entry.
    number = bisect.bisect_right(instructions, at, key=lambda one: one.offset) - 1
    if number < 0:
        return None
    if "JUMP" not in instructions[number].opname:
        number += 1
        while number < len(instructions) and instructions[number].opname in _SKIPPED:
            number += 1
    if number >= len(instructions):
        return None
    name = instructions[number].opname
    jumps = name.startswith("POP_JUMP") and name.endswith(("TRUE", "FALSE"))
    return _Branch(instructions, places, number) if jumps else None


def failing_value(frame: FrameType | None) -> bool | None:
    """Return the value of the tested condition, True or False, that makes a frame raise.

    Args:
        frame: a frame whose last instruction compares, or tests for truth.

    Returns:
        None if neither value raises at once, or if no branch depends on the condition.
    """
    branch = _find_branch(frame.f_code, frame.f_lasti) if frame is not None else None
    if branch is None:
        return None
    if _raises(branch, branch.number + 1):
        return not branch.jumps_if
    target = branch.places.get(branch.jump.argval)
    return branch.jumps_if if target is not None and _raises(branch, target) else None


def _raises(branch: _Branch, number: int) -> bool:
    """Return True if each path from this instruction raises."""
    for _ in range(_WALKED):
        if number >= len(branch.instructions):
            break
        one = branch.instructions[number]
        if one.opname == "RAISE_VARARGS":
            return True
        if one.opname == "JUMP_FORWARD":
            number = branch.places[one.argval]
        elif one.opname.startswith("POP_JUMP") and one.argval > one.offset:
            if not _raises(branch, branch.places[one.argval]):
                break
            number += 1
        elif one.opname.startswith(_ENDS):
            break
        else:
            number += 1
    return False


def continuing_value(frame: FrameType | None) -> bool | None:
    """Return the value of a condition that stays in a loop; None if none of its values leaves.

    It is that of ``while``, or of an ``if`` that ends with ``break`` or ``return``.
    """
    branch = _find_branch(frame.f_code, frame.f_lasti) if frame is not None else None
    loop = _find_loop(frame)
    if branch is None or loop is None:
        return None
    target = _place(branch.instructions[branch.places[branch.jump.argval]])
    if isinstance(loop, ast.While) and _place(branch.jump) < _begin(loop.body):
        return branch.jumps_if is (_begin(loop.body) <= target < _end(loop.body))
    following = _place(branch.instructions[branch.number + 1])
    for suite in _leaving_suites(loop):
        for place, value in ((target, branch.jumps_if), (following, not branch.jumps_if)):
            if _begin(suite) <= place < _end(suite):
                return not value
    return None


@functools.lru_cache(maxsize=256)
def _leaving_suites(loop: ast.AST) -> list[list[ast.stmt]]:
    """Return the suites of ``if`` and ``else`` in a loop that end with ``break`` or ``return``."""
    tests = (node for node in ast.walk(loop) if isinstance(node, ast.If))
    suites = (suite for one in tests for suite in (one.body, one.orelse))
    return [one for one in suites if one and isinstance(one[-1], ast.Break | ast.Return)]


def _begin(suite: list[ast.stmt]) -> tuple[int, int]:
    return suite[0].lineno, suite[0].col_offset


def _end(suite: list[ast.stmt]) -> tuple[int, int]:
    return suite[-1].end_lineno or 0, suite[-1].end_col_offset or 0


def _place(instruction: dis.Instruction) -> tuple[int, int]:
    """Return the line and column where the code of an instruction begins."""
    place = instruction.positions
    return ((place.lineno or 0), (place.col_offset or 0)) if place is not None else (0, 0)


def waits(frame: FrameType | None) -> bool:
    """Return True if the innermost loop around the running line is a ``while``."""
    return isinstance(_find_loop(frame), ast.While)


def _find_loop(frame: FrameType | None) -> ast.While | ast.For | ast.AsyncFor | None:
    """Return the innermost loop around the running line."""
    loops = _read_source(frame.f_code.co_filename).loops if frame is not None else ()
    line = frame.f_lineno if frame is not None else 0
    around = [one for one in loops if one.lineno <= line <= (one.end_lineno or 0)]
    return max(around, key=lambda one: one.lineno, default=None)


def is_only_shown(frame: FrameType | None, *, marked: bool) -> bool:
    """Return True if the value of the running expression is only printed, or followed to its end.

    Args:
        frame: the user's innermost frame.
        marked: the value knows that it is made up, so that comparisons and fractions of it are
            followed and need no look at the source.
    """
    return frame is not None and _is_only_shown(frame.f_code, frame.f_lasti, marked)


@functools.lru_cache(maxsize=4096)
def _is_only_shown(code: CodeType, at: int, marked: bool) -> bool:
    source, node = _find_expression(code, at)
    if isinstance(node, ast.Call) and _is_display(node):
        return True
    reads = isinstance(node, ast.JoinedStr | ast.FormattedValue) or (
        isinstance(node, ast.Call) and called_name(node.func) in _READS
    )
    return node is not None and (marked or reads) and _Uses(source).all_shown(node, marked)


class _Uses:
    """A search for the uses of a value, from expression to expression."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._seen: set[tuple[ast.AST, str]] = set()
        """Variables that were looked at, with their functions."""

    def all_shown(self, node: ast.AST, marked: bool) -> bool:
        """Return True if the value of an expression is only printed or logged."""
        parent = self._source.parents[node]
        if isinstance(parent, ast.Expr):
            return True
        if isinstance(parent, ast.Call):
            return node is not parent.func and self._call_shows(parent, marked)
        if isinstance(parent, ast.keyword):
            call = self._source.parents[parent]
            return isinstance(call, ast.Call) and self._call_shows(call, marked)
        if isinstance(parent, ast.FormattedValue | ast.JoinedStr):
            return self.all_shown(parent, marked=False)
        if isinstance(parent, ast.Compare):
            return marked
        if isinstance(parent, ast.BinOp):
            if marked and isinstance(parent.op, ast.Div):
                return True
            texts = isinstance(parent.left, ast.Constant | ast.JoinedStr)
            return self.all_shown(parent, marked and not texts)
        if isinstance(parent, ast.Subscript):
            return node is parent.value and self.all_shown(parent, marked)
        if isinstance(parent, ast.Tuple | ast.List | ast.Dict | ast.UnaryOp | ast.IfExp):
            return self.all_shown(parent, marked)
        if isinstance(parent, ast.AugAssign):
            return marked or self._is_variable_shown(parent.target, marked)
        if isinstance(parent, ast.Assign):
            return all(self._is_variable_shown(one, marked) for one in parent.targets)
        if isinstance(parent, ast.AnnAssign | ast.NamedExpr):
            return self._is_variable_shown(parent.target, marked)
        return False

    def _call_shows(self, call: ast.Call, marked: bool) -> bool:
        """Return True if a call prints its argument, or its result is only printed."""
        name = called_name(call.func)
        if _is_display(call) or (marked and name == "append"):
            return True
        plain = name in _READS or name == "join"
        return name in _PASS_ON and self.all_shown(call, marked and not plain)

    def _is_variable_shown(self, target: ast.expr, marked: bool) -> bool:
        """Return True if each use of a variable in its function only prints it."""
        if not isinstance(target, ast.Name):
            return False
        scope: ast.AST = target
        while not isinstance(scope, _SCOPES):
            scope = self._source.parents[scope]
        if (scope, target.id) in self._seen:
            return True
        self._seen.add((scope, target.id))
        return all(
            self.all_shown(one, marked)
            for one in ast.walk(scope)
            if isinstance(one, ast.Name) and one.id == target.id and isinstance(one.ctx, ast.Load)
        )


def _is_display(call: ast.Call) -> bool:
    """Return True if a call prints or logs its arguments."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if called_name(call.func) == "log" and (
        owner is None or called_name(owner) in ("math", "np", "torch")
    ):
        return False
    return called_name(call.func) in _SHOWS


def parses_text() -> bool:
    """Return True if the user's code parses numbers from text or files."""
    return _users_code_has(_PARSERS)


def takes_plain_numbers() -> bool:
    """Return True if the user's code passes numbers to functions that ask them for no method."""
    return _users_code_has(_TAKERS)


def _users_code_has(calls: re.Pattern[str]) -> bool:
    """Return True if the running file of the user's, or an imported one, has such a call."""
    frame = source_lines.users_frame()
    running = frame is not None and _has(calls, frame.f_code.co_filename)
    return running or _imported_code_has(calls, len(sys.modules))


@functools.lru_cache(maxsize=4)
def _imported_code_has(calls: re.Pattern[str], _: int) -> bool:
    """Search the user's imported files, again only if the number of modules has changed."""
    files = {getattr(one, "__file__", None) for one in list(sys.modules.values())}
    return any(_has(calls, file) for file in files if file)


@functools.cache
def _has(calls: re.Pattern[str], file: str) -> bool:
    """Return True if a file is the user's and has such a call."""
    return source_lines.is_users(file) and any(map(calls.search, linecache.getlines(file)))
