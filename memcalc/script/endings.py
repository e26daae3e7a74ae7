"""How a program ends in a child that simulates it, which goes on to send its answer.

Python would call what the program registered (``atexit``), and stop threads that still run. What
packages registered before the program began is not the program's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NoReturn

from memcalc.script.patches import Patches

_PATIENCE = 1.0
"""Seconds within which threads come to their next operator."""
_PAUSE = 0.01
"""Seconds after which one that waits is where it was."""
_TORCH = f"{os.sep}torch{os.sep}"
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class AtExit:
    """The program's own calls at its end."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def install(self, patches: Patches) -> None:
        """Write down what is registered from now on."""
        patches.set(atexit, "register", self._register)
        patches.set(atexit, "unregister", self._unregister)
        # Of finalizers those that the program makes are called too, and no others.
        for before in _finalizers():
            before.atexit = False
        patches.set(weakref.finalize, "_registered_with_atexit", False)

    def run(self) -> None:
        """Call the last first. What they raise is shown and changes nothing, as in Python.

        Only what is no error of a program, such as the wish to leave at once, comes through.
        """
        while self._calls:
            function, args, kwargs = self._calls.pop()
            try:
                function(*args, **kwargs)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                _show(function, error)

    def _register(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not callable(func):
            raise TypeError("the first argument must be callable")
        self._calls.append((func, args, kwargs))
        return func

    def _unregister(self, func: Callable[..., Any]) -> None:
        self._calls[:] = [call for call in self._calls if call[0] != func]


def _finalizers() -> list[Any]:
    return list(getattr(weakref.finalize, "_registry", ()))


def _show(function: Callable[..., Any], error: BaseException) -> None:
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    # The program may have closed it.
    with contextlib.suppress(ValueError, OSError, AttributeError):
        print(f"Exception ignored in atexit callback: {function!r}", file=sys.stderr)
        traceback.print_exception(type(error), error, frames)


def halt() -> NoReturn:
    """A thread that the program left running goes no further; the process is about to end."""
    while True:
        threading.Event().wait()


def wait_for_threads() -> None:
    """Wait until all other threads are halted, or wait themselves for something outside PyTorch."""
    until, before = time.monotonic() + _PATIENCE, None
    while time.monotonic() < until:
        places = {thread: (id(frame), frame.f_lasti) for thread, frame in _going()}
        if not places or (places == before and not any(_in_torch(one) for _, one in _going())):
            return
        before = places
        time.sleep(_PAUSE)


def _going() -> list[tuple[int, FrameType]]:
    """Threads that are not halted, and where they are."""
    own = threading.get_ident()
    found = [(thread, frame) for thread, frame in sys._current_frames().items() if thread != own]
    return [(thread, frame) for thread, frame in found if halt.__code__ not in _codes(frame)]


def _in_torch(frame: FrameType) -> bool:
    return any(_TORCH in code.co_filename for code in _codes(frame))


def _codes(frame: FrameType | None) -> list[CodeType]:
    found = []
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back
    return found
