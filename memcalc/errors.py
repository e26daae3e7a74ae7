"""Everything that can go wrong for a user, each with its exit code; one tree."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

_LONGEST = 1000
"""Signs of a sentence; what a file holds is quoted in it, and may be of any length."""


class MemcalcError(Exception):
    """Base of all errors a user may see: one sentence that says what to type instead."""

    exit_code = 3


class UsageError(MemcalcError):
    """The question cannot be understood: an unknown name, a bad option, a broken file."""

    exit_code = 2


class SettingError(UsageError):
    """One setting of a plan is not understood."""

    def __init__(self, setting: str, message: str) -> None:
        """Say what is wrong.

        Args:
            setting: the field of ``Plan``.
            message: one sentence that says what to type instead.
        """
        super().__init__(message)
        self.setting = setting


class OverBudgetError(MemcalcError):
    """A budget does not hold."""

    exit_code = 1


class EstimateError(MemcalcError):
    """The question is clear, but it could not be estimated."""

    exit_code = 3


class MeasureError(MemcalcError):
    """The question is clear, but it could not be measured."""

    exit_code = 3


NO_GPU = "No CUDA GPU here: run memcalc doctor to see why, or add --device cpu."
"""What a run on a GPU ends with where there is none."""


class MeasureTimeoutError(MeasureError):
    """A measurement took longer than the user allowed."""

    exit_code = 124


def unknown(kind: str, name: str, known: Iterable[str], *, hint: str) -> UsageError:
    """Build the error for an unknown name, with the closest known ones.

    Args:
        kind: what was named, in the singular: ``model``, ``optimizer``.
        name: what the user typed.
        known: all names that would have worked.
        hint: what to type to see them all.
    """
    by_key = {key.lower(): key for key in known}
    close = difflib.get_close_matches(name.lower(), by_key, n=3, cutoff=0.5)
    offer = f"did you mean {' or '.join(by_key[key] for key in close)}? " if close else ""
    return UsageError(f"Unknown {kind} {name!r}: {offer}{hint}")


def exit_code(error: BaseException) -> int:
    """The exit code that an error ends the command with."""
    if isinstance(error, MemcalcError):
        return error.exit_code
    return UsageError.exit_code if _no_folder(error) else MemcalcError.exit_code


def _no_folder(error: BaseException) -> bool:
    """Whether it is ``os.getcwd``'s, whose errors name no file."""
    return isinstance(error, FileNotFoundError) and error.filename is None


def sentence(error: BaseException) -> str:
    """What a user is told of an error, also of one that nobody expected."""
    if isinstance(error, MemcalcError):
        said = str(error)
        return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."
    if _no_folder(error):
        return "The current folder is gone: change to one that exists."
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "Cannot write the answer: standard output is closed."
    if isinstance(error, OSError) and error.strerror:
        what = f"use {error.filename}" if error.filename is not None else "write the answer"
        return f"Cannot {what}: {error.strerror}."
    if isinstance(error, MemoryError):
        return "memcalc ran out of main memory."
    if isinstance(error, RecursionError):
        return "memcalc recursed too deeply: its input is nested too deeply."
    text = " ".join(str(error).split())[:300]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"memcalc itself failed ({said}): MEMCALC_DEBUG=1 shows where."
