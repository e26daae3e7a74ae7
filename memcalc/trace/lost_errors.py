"""Errors inside backward, which would end the process on a device that Python supplies.

While an error of a hook or an operator leaves the engine's thread, PyTorch asks the device's guard
for its type (torch/csrc/acc/Module.cpp, ``exchangeStream``, 2.11 and 2.13). That is Python code
again, which cannot run while an error is under way, and C++ gives up: so here the error is taken
out of the way first, and raised where backward was called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from memcalc.trace.torch_private.devices import PRIVATE_DEVICE, DeviceGuard

_fetch = ctypes.pythonapi.PyErr_Fetch
_normalize = ctypes.pythonapi.PyErr_NormalizeException
_fetch.restype = _normalize.restype = None
# Made before: with an error under way, nothing but the call that takes it may be called.
_type, _value, _traceback = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
_found = (ctypes.byref(_type), ctypes.byref(_value), ctypes.byref(_traceback))
_lost: list[BaseException] = []


class Guard(DeviceGuard):  # type: ignore[misc]
    """The guard of a device that has no streams and no context."""

    def type_(self) -> Any:
        """The device's type, also while an error is under way."""
        _fetch(*_found)
        if _type.value is not None:
            _normalize(*_found)
            # What C handed over is never given back: an error ends the run.
            _lost.append(ctypes.cast(_value, ctypes.py_object).value)
        return PRIVATE_DEVICE


def raised_by(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Backward that raises what was lost on the way."""

    def run(*args: Any, **kwargs: Any) -> Any:
        _lost.clear()
        try:
            return backward(*args, **kwargs)
        except SystemError:
            if not _lost:
                raise
            raise _lost[0] from None

    return run
