"""The tree of user errors, each with its exit code."""

import contextlib
import difflib
import errno
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

_NAMED = 200
"""Signs of a name that is quoted."""
_LIKE = 0.5
"""The least likeness of a name that is offered for another, of 1."""
_LONGEST = 1000
"""Signs of a sentence; what a file holds is quoted in it, and may be of any length."""


class MemcalcError(Exception):
    """Base of all errors a user may see: one sentence that says what to type instead."""

    exit_code = 3

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in a notebook: the sentence alone."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(MemcalcError):
    """The question cannot be understood: an unknown name, a bad option, a broken file."""

    exit_code = 2


class SettingError(UsageError):
    """A setting of a plan is not understood."""

    def __init__(self, setting: str, message: str) -> None:
        """Say what is wrong with a field of ``Plan``, and what to type instead, in one sentence."""
        super().__init__(message)
        self.setting = setting


@contextlib.contextmanager
def blame_setting(setting: str) -> Iterator[None]:
    """Turn errors inside the block into ``SettingError`` of one setting."""
    try:
        yield
    except SettingError:
        raise
    except UsageError as error:
        raise SettingError(setting, str(error)) from None
    except (OSError, TypeError, ValueError) as error:
        # Names that no file system takes.
        raise SettingError(setting, f"{setting} is not understood: {error}.") from None


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


def took_too_long(what: str, timeout: float, where: str = "") -> str:
    """Return the message for a run that was ended by the timeout."""
    there = f", {where}" if where else ""
    return (
        f"The {what} took longer than {timeout:g} seconds and was ended{there}: give it more with "
        "--timeout."
    )


def unknown(kind: str, name: str, known: Iterable[str], *, hint: str) -> UsageError:
    """Return the error for an unknown name, with the closest known ones."""
    names = list(known)
    close = find_similar(name, names)
    if not close:
        likeness = {key: _rate_likeness(name.lower(), key.lower()) for key in names}
        near = [key for key in names if likeness[key] >= (_LIKE,)]
        close = sorted(near, key=lambda key: (*(-one for one in likeness[key]), len(key)))
    if close:
        hint = f"did you mean {' or '.join(close[:3])}? {hint[:1].upper()}{hint[1:]}"
    return UsageError(f"Unknown {kind} {name!r}: {hint}")


def _rate_likeness(typed: str, name: str) -> tuple[float, float]:
    """Return how like a name, or a word of it, is to what was typed: in order, and in any order."""
    parts = [name]
    if "/" not in typed:
        last = name.rpartition("/")[2]
        parts = [last, *re.findall(r"[^\W_]+", last)]
    return max(
        (
            difflib.SequenceMatcher(None, one, typed).ratio(),
            (Counter(one) & Counter(typed)).total() / max(len(one), len(typed)),
        )
        for one in parts
    )


def find_similar(name: str, known: Iterable[str], *, whole: bool = False) -> list[str]:
    """Return known names that contain all words and numbers of a name, nearest first.

    ``adam8`` finds ``adam8bit``, ``mistral 7b`` finds ``Mistral-7B-v0.1``.
    """
    typed = _split_words(name)
    by_name = {one: _split_words(one if "/" in name else one.rpartition("/")[2]) for one in known}
    found = [one for one, words in by_name.items() if typed and _has_words(words, typed, whole)]
    return sorted(found, key=lambda one: (len(set(by_name[one]) - set(typed)), len(one)))


def _has_words(words: list[str], typed: list[str], whole: bool) -> bool:
    if whole:
        return any(words[at : at + len(typed)] == typed for at in range(len(words)))
    # One letter or digit alone begins too many words: of t5 is neither the Ti nor a 5070.
    begins = [part if len(part) > 1 else f"{part}." for part in typed]
    return all(
        any(word == part or word.startswith(begin) for word in words)
        for part, begin in zip(typed, begins, strict=True)
    )


def _split_words(name: str) -> list[str]:
    """Split a name into words and numbers, in small letters."""
    return re.findall(r"[a-z]+|[0-9]+(?:\.[0-9]+)*", name.lower())


def exit_code(error: BaseException) -> int:
    """Return the command's exit code for an exception."""
    if _is_folder_gone(error) or isinstance(error, UnicodeEncodeError):
        return UsageError.exit_code
    return error.exit_code if isinstance(error, MemcalcError) else MemcalcError.exit_code


def _is_folder_gone(error: BaseException) -> bool:
    """Return True if the current folder was deleted, by ``os.getcwd`` or the error.

    Whatever else fails in a folder that is gone, in this process or in a child, fails by that.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return (
        isinstance(error, FileNotFoundError)
        and error.filename is None
        and error.strerror == os.strerror(errno.ENOENT)
    )


def sentence(error: BaseException) -> str:
    """Return an exception as one sentence for the user."""
    if _is_folder_gone(error):
        return "The current folder is gone: change to one that exists."
    if isinstance(error, MemcalcError):
        said = str(error)
        return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "Cannot write the answer: standard output is closed."
    if isinstance(error, OSError) and error.strerror:
        if isinstance(error, FileNotFoundError) and error.filename is None:
            return f"{error.strerror}: set TMPDIR to a folder that takes files."
        what = f"use {error.filename}" if error.filename is not None else "write the answer"
        return f"Cannot {what}: {error.strerror}."
    if isinstance(error, UnicodeEncodeError):
        return f"{ascii(error.object)[:_NAMED]} is not in UTF-8: rename the file or folder."
    if isinstance(error, MemoryError):
        return "memcalc ran out of main memory."
    if isinstance(error, RecursionError):
        return "memcalc recursed too deeply: its input is nested too deeply."
    text = " ".join(str(error).split())[:300]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"memcalc itself failed ({said}): MEMCALC_DEBUG=1 shows where."
