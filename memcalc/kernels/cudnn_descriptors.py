"""Descriptors of cuDNN's backend API: what it is told and what it answers, by number.

Numbers of attributes and types: cudnn_graph.h of 9.20.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """What a descriptor is of (``cudnnBackendDescriptorType_t``)."""

    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    GRAPH = 15
    TENSOR = 17
    DEVICE = 38


class Type(IntEnum):
    """Of an attribute's values (``cudnnBackendAttributeType_t``)."""

    DATA_TYPE = 1
    INT64 = 3
    FLOAT = 4
    CONVOLUTION_MODE = 7
    HEURISTICS_MODE = 8
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    CHAR = 24


_C: dict[Type, Any] = {
    Type.DATA_TYPE: ctypes.c_int,
    Type.INT64: ctypes.c_int64,
    Type.FLOAT: ctypes.c_float,
    Type.CONVOLUTION_MODE: ctypes.c_int,
    Type.HEURISTICS_MODE: ctypes.c_int,
    Type.DESCRIPTOR: ctypes.c_void_p,
}


class Error(Exception):
    """CuDNN refused."""


ARGUMENTS: dict[str, list[Any]] = {
    "SetAttribute": [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p],
    "GetAttribute": [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ],
    "Finalize": [ctypes.c_void_p],
    "DestroyDescriptor": [ctypes.c_void_p],
}


class Descriptor:
    """A backend descriptor; ended with the stack that made it."""

    def __init__(self, library: ctypes.CDLL, kind: int) -> None:
        self._library = library
        self.handle = ctypes.c_void_p()
        _check(library.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(self.handle)))

    def set(self, attribute: int, kind: Type, *values: Any) -> Descriptor:
        """Set an attribute to one value or a list."""
        plain = [v.handle.value if isinstance(v, Descriptor) else v for v in values]
        array: Any = (_C[kind] * len(plain))(*plain)
        return self._set(attribute, kind, len(plain), array)

    def text(self, attribute: int, value: str) -> Descriptor:
        """Set an attribute to a text."""
        encoded = value.encode()
        return self._set(attribute, Type.CHAR, len(encoded), ctypes.create_string_buffer(encoded))

    def _set(self, attribute: int, kind: Type, count: int, array: Any) -> Descriptor:
        _check(self._library.cudnnBackendSetAttribute(self.handle, attribute, kind, count, array))
        return self

    def done(self) -> Descriptor:
        """No more attributes are set."""
        _check(self._library.cudnnBackendFinalize(self.handle))
        return self

    def number(self, attribute: int) -> int:
        """Read a number."""
        value, count = ctypes.c_int64(), ctypes.c_int64()
        arguments = (Type.INT64, 1, ctypes.byref(count), ctypes.byref(value))
        _check(self._library.cudnnBackendGetAttribute(self.handle, attribute, *arguments))
        return value.value

    def numbers(self, attribute: int, kind: Type, most: int) -> list[int]:
        """Read a list of numbers of 32 bits."""
        array, count = (ctypes.c_int * most)(), ctypes.c_int64()
        arguments = (kind, most, ctypes.byref(count), array)
        _check(self._library.cudnnBackendGetAttribute(self.handle, attribute, *arguments))
        return list(array[: count.value])

    def fill(self, attribute: int, others: Sequence[Descriptor]) -> int:
        """Let an attribute's descriptors be written into others; how many there are."""
        array = (ctypes.c_void_p * len(others))(*(other.handle.value for other in others))
        count = ctypes.c_int64()
        arguments = (Type.DESCRIPTOR, len(others), ctypes.byref(count), array if others else None)
        _check(self._library.cudnnBackendGetAttribute(self.handle, attribute, *arguments))
        return count.value

    def end(self) -> None:
        """Give it back."""
        self._library.cudnnBackendDestroyDescriptor(self.handle)


class Maker:
    """Makes descriptors that end with a stack."""

    def __init__(self, library: ctypes.CDLL, stack: contextlib.ExitStack) -> None:
        self._library = library
        self._stack = stack

    def __call__(self, kind: int) -> Descriptor:
        """A descriptor of a kind."""
        made = Descriptor(self._library, kind)
        self._stack.callback(made.end)
        return made


def _check(status: int) -> None:
    if status:
        raise Error(status)
