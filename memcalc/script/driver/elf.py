"""What a shared object needs of others: libraries, and symbols with their versions.

Source: ELF-64 Object File Format 1.5, and the Linux Standard Base 5.0, "Symbol Versioning".
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

_STRINGS, _DYNAMIC, _SYMBOLS = 3, 6, 11
_NEEDS_VERSIONS, _VERSIONS = 0x6FFFFFFE, 0x6FFFFFFF
_NEEDED = 1
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LIBRARY_VERSIONS = struct.Struct("<HHIII")
_ONE_VERSION = struct.Struct("<IHHII")


class Wanted(msgspec.Struct, frozen=True):
    """A symbol that some library must have."""

    name: str
    version: str = ""
    library: str = ""
    """Which one; empty: the symbol has no version, and any library will do."""


class Needs(msgspec.Struct, frozen=True):
    """What a shared object needs."""

    libraries: frozenset[str]
    symbols: frozenset[Wanted]


class _Section(msgspec.Struct, frozen=True):
    kind: int
    offset: int
    size: int
    link: int


def needs(path: Path) -> Needs:
    """Read what a shared object needs.

    Raises:
        ValueError: it is no 64-bit little-endian ELF file.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit library")
    sections = list(_sections(data))
    by_kind = {section.kind: section for section in sections}
    dynamic, symbols = by_kind[_DYNAMIC], by_kind[_SYMBOLS]
    strings = sections[symbols.link]
    libraries = set()
    for at in range(dynamic.offset, dynamic.offset + dynamic.size, 16):
        tag, value = struct.unpack_from("<qQ", data, at)
        if tag == _NEEDED:
            libraries.add(_text(data, sections[dynamic.link], value))
    versions = dict(_versions(data, sections, by_kind.get(_NEEDS_VERSIONS)))
    numbers = by_kind.get(_VERSIONS)
    wanted = set()
    for index in range(symbols.size // _SYMBOL.size):
        name, _, _, section, *_ = _SYMBOL.unpack_from(data, symbols.offset + index * _SYMBOL.size)
        if section or not name:
            continue
        number = 0
        if numbers is not None:
            (number,) = struct.unpack_from("<H", data, numbers.offset + 2 * index)
        library, version = versions.get(number & 0x7FFF, ("", ""))
        wanted.add(Wanted(_text(data, strings, name), version, library))
    return Needs(frozenset(libraries), frozenset(wanted))


def _sections(data: mmap.mmap) -> Iterator[_Section]:
    (begin,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for index in range(count):
        _, kind, _, _, offset, length, link, *_ = _SECTION.unpack_from(data, begin + index * size)
        yield _Section(kind, offset, length, link)


def _versions(
    data: mmap.mmap, sections: list[_Section], section: _Section | None
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Library and version by the number that symbols refer to them with."""
    if section is None:
        return
    strings = sections[section.link]
    at, more = section.offset, True
    while more:
        _, count, file, first, following = _LIBRARY_VERSIONS.unpack_from(data, at)
        library, one = _text(data, strings, file), at + first
        for _ in range(count):
            _, _, number, name, after = _ONE_VERSION.unpack_from(data, one)
            yield number, (library, _text(data, strings, name))
            one += after
        at, more = at + following, bool(following)


def _text(data: mmap.mmap, strings: _Section, at: int) -> str:
    begin = strings.offset + at
    return data[begin : data.find(b"\0", begin)].decode()
