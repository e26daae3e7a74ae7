"""Finds out whether a condition guards a `raise` or ends a loop, from the bytecode that tests it.

A sound program passes its own checks on a GPU. So a check of a number that is not computed here is
assumed to pass: `assert (boxes >= 0).all()`, or `if not valid.all(): raise ValueError(...)`. Its
loops converge: `while error > tolerance` ends at some time.
"""

import dis
import functools
from types import CodeType, FrameType

_WALKED = 80
"""Instructions that are looked at for a raise: a message with several values takes some 50."""
_SKIPPED = frozenset(("TO_BOOL", "CACHE", "NOT_TAKEN", "EXTENDED_ARG", "COPY_FREE_VARS", "NOP"))
_ENDS = ("JUMP", "RETURN", "POP_JUMP", "FOR_ITER", "SEND", "YIELD")


def failing(frame: FrameType | None) -> bool | None:
    """Return the value of the condition being tested in a frame that makes it raise.

    Args:
        frame: its last instruction compares, or tests for truth.

    Returns:
        None if neither value raises at once, or if no branch depends on the condition.
    """
    if frame is None or frame.f_lasti < 0:
        return None
    return _failing(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=4096)
def _failing(code: CodeType, at: int) -> bool | None:
    found = _find_jump(code, at)
    if found is None:
        return None
    instructions, places, number = found
    jump = instructions[number]
    jumps_if = jump.opname.endswith("TRUE")
    if _raises(instructions, places, number + 1):
        return not jumps_if
    if jump.argval in places and _raises(instructions, places, places[jump.argval]):
        return jumps_if
    return None


def _find_jump(code: CodeType, at: int) -> tuple[list[dis.Instruction], dict[int, int], int] | None:
    """Return the instructions, their numbers by place, and the number of the one that branches."""
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
    jump = instructions[number].opname
    branches = jump.startswith("POP_JUMP") and jump.endswith(("TRUE", "FALSE"))
    return (instructions, places, number) if branches else None


@functools.lru_cache(maxsize=4096)
def repeating(code: CodeType, at: int) -> bool | None:
    """Return the value of the condition being tested that has a ``while`` loop go on.

    Returns:
        None if the condition is not that of a loop, or of a ``for`` loop's last ``if``.
    """
    found = _find_jump(code, at)
    if found is None:
        return None
    instructions, places, number = found
    jump, jumps_if = instructions[number], instructions[number].opname.endswith("TRUE")
    following = instructions[number + 1] if number + 1 < len(instructions) else jump
    there = instructions[places[jump.argval]]
    for one, goes_on in ((jump, jumps_if), (following, not jumps_if), (there, jumps_if)):
        back = "JUMP" in one.opname and isinstance(one.argval, int) and one.argval < one.offset
        if back and instructions[places[one.argval]].opname != "FOR_ITER":
            return goes_on
    return None


def _raises(instructions: list[dis.Instruction], places: dict[int, int], number: int) -> bool:
    """Return whether every way on from an instruction raises."""
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
