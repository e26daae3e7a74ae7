"""Finds out what a condition guards, from the code that tests it: a `raise`, or a loop's end.

A sound program passes its own checks on a GPU. So a check of a number that is not computed here is
assumed to pass: `assert (boxes >= 0).all()`, or `if not valid.all(): raise ValueError(...)`.
"""

import ast
import dis
import functools
import linecache
from types import CodeType, FrameType

_WALKED = 80
"""The most instructions to search for a raise: a message with several values takes about 50."""
_SKIPPED = frozenset(("TO_BOOL", "CACHE", "NOT_TAKEN", "EXTENDED_ARG", "COPY_FREE_VARS", "NOP"))
_ENDS = ("JUMP", "RETURN", "POP_JUMP", "FOR_ITER", "SEND", "YIELD")


def failing_value(frame: FrameType | None) -> bool | None:
    """Return the value of the tested condition, True or False, that makes a frame raise.

    Args:
        frame: a frame whose last instruction compares, or tests for truth.

    Returns:
        None if neither value raises at once, or if no branch depends on the condition.
    """
    if frame is None or frame.f_lasti < 0:
        return None
    return _failing_value(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=4096)
def _failing_value(code: CodeType, at: int) -> bool | None:
    """Return the value that fails the check at an instruction's offset in a code object."""
    instructions = list(dis.get_instructions(code))
    places = {one.offset: number for number, one in enumerate(instructions)}
    number = places.get(at)
    if number is None:
        return None
    if "JUMP" not in instructions[number].opname:
        number += 1
        while number < len(instructions) and instructions[number].opname in _SKIPPED:
            number += 1
    if number >= len(instructions):
        return None
    jump = instructions[number]
    if not jump.opname.startswith("POP_JUMP") or not jump.opname.endswith(("TRUE", "FALSE")):
        return None
    jumps_if = jump.opname.endswith("TRUE")
    if _raises(instructions, places, number + 1):
        return not jumps_if
    if jump.argval in places and _raises(instructions, places, places[jump.argval]):
        return jumps_if
    return None


def _raises(instructions: list[dis.Instruction], places: dict[int, int], number: int) -> bool:
    """Return True if every path from an instruction on raises."""
    for _ in range(_WALKED):
        if number >= len(instructions):
            break
        one = instructions[number]
        if one.opname == "RAISE_VARARGS":
            return True
        if one.opname == "JUMP_FORWARD":
            number = places[one.argval]
        elif one.opname.startswith("POP_JUMP") and one.argval > one.offset:
            if not _raises(instructions, places, places[one.argval]):
                break
            number += 1
        elif one.opname.startswith(_ENDS):
            break
        else:
            number += 1
    return False


def waits(frame: FrameType | None) -> bool:
    """Return True if the innermost loop around the running line is a ``while``."""
    if frame is None:
        return False
    loops = _find_loops(frame.f_code.co_filename)
    around = [one for one in loops if one.lineno <= frame.f_lineno <= (one.end_lineno or 0)]
    return bool(around) and isinstance(max(around, key=lambda one: one.lineno), ast.While)


@functools.lru_cache(maxsize=64)
def _find_loops(file: str) -> list[ast.While | ast.For | ast.AsyncFor]:
    try:
        found = ast.walk(ast.parse("".join(linecache.getlines(file))))
    except (SyntaxError, ValueError):
        return []
    return [one for one in found if isinstance(one, ast.While | ast.For | ast.AsyncFor)]
