"""Reads a shared object's symbols and needed libraries.

The dynamic section is read, as the loader does it, so stripped files and files without section
headers are read too.
Source: ELF-64 Object File Format 1.5; the layout of DT_GNU_HASH as glibc 2.36 reads it
(elf/dl-lookup.c).
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _HASH, _STRINGS, _SYMBOLS, _SONAME = 1, 4, 5, 6, 14
_GNU_HASH = 0x6FFFFEF5
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class SharedObject(msgspec.Struct, frozen=True):
    """What a shared object says of itself."""

    machine: int
    """``e_machine``: 62 is x86-64, 183 aarch64."""
    soname: str
    needed: tuple[str, ...]
    """Sonames of the libraries that it is linked to."""
    wanted: frozenset[str]
    """Names of the symbols that some other library must have."""
    defined: frozenset[str]
    """Names of the symbols that it has for others."""


def read(path: Path, *, defined: bool = True) -> SharedObject:
    """Read a shared object.

    Args:
        path: the file.
        defined: read the names of its own symbols too, of which large libraries have many.

    Raises:
        ValueError: it is no 64-bit little-endian shared object, or it is damaged.
        OSError: it cannot be read.
    """
    with _opened(path) as file:
        return file.read(defined=defined)


def needed(path: Path) -> tuple[str, ...]:
    """Sonames of the libraries that a shared object is linked to; none of any other file."""
    try:
        with _opened(path) as file:
            return file.needed()
    except (OSError, ValueError):
        return ()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_File]:
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if data[:6] != b"\x7fELF\x02\x01":
                raise ValueError(f"{path} is not a 64-bit library")
            yield _File(data)
    except (struct.error, KeyError, IndexError, OverflowError):
        raise ValueError(f"{path} is not a shared object, or it is damaged") from None


class _File:
    """The tables of one file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        (begin,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        headers = [_SEGMENT.unpack_from(data, begin + index * size) for index in range(count)]
        self._loaded = [
            (at, offset, held) for kind, _, offset, at, _, held, *_ in headers if kind == _LOAD
        ]
        self._tags: list[tuple[int, int]] = []
        for kind, _, offset, *_ in headers:
            if kind == _DYNAMIC:
                self._tags = list(self._dynamic(offset))
        self._values = dict(self._tags)
        self._strings = self._offset(self._values[_STRINGS])

    def read(self, *, defined: bool) -> SharedObject:
        """All that is known of it."""
        soname = self._text(self._values[_SONAME]) if _SONAME in self._values else ""
        symbols = self._offset(self._values[_SYMBOLS])
        wanted: set[str] = set()
        own: set[str] = set()
        for index in range(1, self._number_of_symbols(defined=defined)):
            name, _, _, section, *_ = _SYMBOL.unpack_from(
                self._data, symbols + index * _SYMBOL.size
            )
            if name:
                (own if section else wanted).add(self._text(name))
        (machine,) = struct.unpack_from("<H", self._data, 18)
        return SharedObject(
            machine, soname, self.needed(), frozenset(wanted), frozenset(own if defined else ())
        )

    def needed(self) -> tuple[str, ...]:
        """Sonames of the libraries that it is linked to."""
        return tuple(self._text(value) for tag, value in self._tags if tag == _NEEDED)

    def _dynamic(self, at: int) -> Iterator[tuple[int, int]]:
        while True:
            tag, value = struct.unpack_from("<qQ", self._data, at)
            if not tag:
                return
            yield tag, value
            at += 16

    def _offset(self, address: int) -> int:
        """Where in the file an address of the loaded library is."""
        for begin, offset, held in self._loaded:
            if begin <= address < begin + held:
                return int(offset + address - begin)
        raise KeyError(address)

    def _text(self, at: int) -> str:
        begin = self._strings + at
        return self._data[begin : self._data.find(b"\0", begin)].decode()

    def _number_of_symbols(self, *, defined: bool) -> int:
        """Of all, or of those up to the last one that is wanted: these come first."""
        if _HASH in self._values:
            (count,) = struct.unpack_from("<I", self._data, self._offset(self._values[_HASH]) + 4)
            return int(count)
        at = self._offset(self._values[_GNU_HASH])
        buckets, first, words, _ = struct.unpack_from("<4I", self._data, at)
        at += 16 + 8 * words
        last = max(struct.unpack_from(f"<{buckets}I", self._data, at), default=0)
        if last < first:
            # It has none of its own: names follow the table of symbols.
            return (self._values[_STRINGS] - self._values[_SYMBOLS]) // _SYMBOL.size
        if not defined:
            return int(first)
        # A chain ends with an odd hash.
        chains = at + 4 * buckets
        while not struct.unpack_from("<I", self._data, chains + 4 * (last - first))[0] & 1:
            last += 1
        return int(last) + 1
