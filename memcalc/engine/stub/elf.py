"""Reads a shared object's symbols and needed libraries, and writes shells without a compiler.

Like the loader it reads the dynamic section, so it also reads stripped files and files without
section headers.

A *shell* has a soname of NVIDIA's and no symbols: a program that asks the loader for that soname
gets it, and with it the stub driver that it needs. Symbols of the stub driver have no versions. The
loader accepts them for versioned ones only if they come from another library than the one that the
version names, which is why shells have no symbols.
Source: ELF-64 Object File Format 1.5, and the System V ABI, "Hash Table"; the layout of
DT_GNU_HASH as glibc 2.36 reads it (elf/dl-lookup.c).
"""

from __future__ import annotations

import contextlib
import mmap
import platform
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from memcalc.errors import EstimateError

MACHINES = {"x86_64": 62, "aarch64": 183}
"""Numbers in ``e_machine`` by the names of ``platform.machine()``."""
_RETURN_ZERO = {
    62: b"\x31\xc0\xc3",  # xor eax, eax; ret
    183: b"\x00\x00\x80\x52\xc0\x03\x5f\xd6",  # mov w0, #0; ret
}
_HEADER, _SEGMENT_SIZE, _SEGMENTS = 64, 56, 4
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _RUN, _WRITE = 4, 1, 2
_LARGEST_PAGE = 0x10000
_NEEDED, _HASH, _STRINGS, _SYMBOLS, _SIZE, _ENTRY, _SONAME, _RUNPATH = 1, 4, 5, 6, 10, 11, 14, 29
_GLOBAL_FUNCTION = 0x12
_GNU_HASH = 0x6FFFFEF5
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class SharedObject(msgspec.Struct, frozen=True):
    """The machine, soname, needed libraries and symbols of a shared object."""

    machine: int
    """``e_machine``: 62 is x86-64, 183 aarch64."""
    soname: str
    needed: tuple[str, ...]
    """Sonames of the libraries that it is linked to."""
    wanted: frozenset[str]
    """Names of undefined symbols, which other libraries must define."""
    defined: frozenset[str]
    """Names of the symbols that it defines."""


def read(path: Path, *, defined: bool = True) -> SharedObject:
    """Read the soname, needed libraries and symbols of a shared object.

    ``defined``: also read the names of the symbols that it defines; large libraries have many.

    Raises:
        ValueError: it is no 64-bit little-endian shared object, or it is damaged.
        OSError: it cannot be read.
    """
    with _open(path) as file:
        return file.read(defined=defined)


def read_dependencies(path: Path) -> tuple[str, ...]:
    """Return the sonames of the libraries that a shared object needs; empty for another file."""
    try:
        with _open(path) as file:
            return file.read_dependencies()
    except (OSError, ValueError):
        return ()


@contextlib.contextmanager
def _open(path: Path) -> Iterator[_File]:
    """Open a shared object; raise ValueError for reads of a damaged one."""
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
    """The dynamic section, strings and symbols of a file."""

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
                self._tags = list(self._read_dynamic(offset))
        self._values = dict(self._tags)
        self._strings = self._file_offset(self._values[_STRINGS])

    def read(self, *, defined: bool) -> SharedObject:
        soname = self._read_text(self._values[_SONAME]) if _SONAME in self._values else ""
        symbols = self._file_offset(self._values[_SYMBOLS])
        wanted: set[str] = set()
        own: set[str] = set()
        for index in range(1, self._count_symbols(defined=defined)):
            name, _, _, section, *_ = _SYMBOL.unpack_from(
                self._data, symbols + index * _SYMBOL.size
            )
            if name:
                (own if section else wanted).add(self._read_text(name))
        (machine,) = struct.unpack_from("<H", self._data, 18)
        return SharedObject(
            machine,
            soname,
            self.read_dependencies(),
            frozenset(wanted),
            frozenset(own if defined else ()),
        )

    def read_dependencies(self) -> tuple[str, ...]:
        """Return the sonames of the libraries that it needs."""
        return tuple(self._read_text(value) for tag, value in self._tags if tag == _NEEDED)

    def _read_dynamic(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield the tags and values of the dynamic section at an offset."""
        while True:
            tag, value = struct.unpack_from("<qQ", self._data, at)
            if not tag:
                return
            yield tag, value
            at += 16

    def _file_offset(self, address: int) -> int:
        """Return the offset in the file of an address of the loaded library."""
        for begin, offset, held in self._loaded:
            if begin <= address < begin + held:
                return int(offset + address - begin)
        raise KeyError(address)

    def _read_text(self, at: int) -> str:
        begin = self._strings + at
        return self._data[begin : self._data.find(b"\0", begin)].decode()

    def _count_symbols(self, *, defined: bool) -> int:
        """Return the number of all symbols, or of the undefined ones, which come first."""
        if _HASH in self._values:
            (count,) = struct.unpack_from(
                "<I", self._data, self._file_offset(self._values[_HASH]) + 4
            )
            return int(count)
        at = self._file_offset(self._values[_GNU_HASH])
        buckets, first, words, _ = struct.unpack_from("<4I", self._data, at)
        at += 16 + 8 * words
        last = max(struct.unpack_from(f"<{buckets}I", self._data, at), default=0)
        if last < first:
            # It defines none: the strings follow the table of symbols.
            return (self._values[_STRINGS] - self._values[_SYMBOLS]) // _SYMBOL.size
        if not defined:
            return int(first)
        # A chain ends with an odd hash.
        chains = at + 4 * buckets
        while not struct.unpack_from("<I", self._data, chains + 4 * (last - first))[0] & 1:
            last += 1
        return int(last) + 1


def machine() -> int:
    """Return the number of this machine in ELF files.

    Raises:
        EstimateError: the stub driver does not support this machine.
    """
    found = MACHINES.get(platform.machine())
    if found is None:
        raise EstimateError(
            f"The stub driver runs on x86-64 and aarch64 alone, and this machine is "
            f"{platform.machine()}: add --method analytic."
        )
    return found


def make_shared_object(
    soname: str,
    symbols: Iterable[str] = (),
    *,
    needed: Iterable[str] = (),
    runpath: str = "",
    machine: int = MACHINES["x86_64"],
) -> bytes:
    """Return the bytes of a shared object whose functions return 0.

    ``needed``: sonames of libraries that the loader loads with it, searched in ``runpath``.
    """
    names, libraries = sorted(set(symbols)), list(needed)
    strings, at = _make_string_table([soname, *libraries, *names, *([runpath] if runpath else [])])
    code = _RETURN_ZERO[machine]
    parts = [_pad(code)]
    code_at = _align(_HEADER + _SEGMENTS * _SEGMENT_SIZE)
    symbols_at = code_at + len(parts[0])
    parts.append(
        bytes(24)
        + b"".join(
            struct.pack("<IBBHQQ", at[name], _GLOBAL_FUNCTION, 0, 1, code_at, len(code))
            for name in names
        )
    )
    hash_at = symbols_at + len(parts[1])
    parts.append(_pad(_make_hash_table(names)))
    strings_at = hash_at + len(parts[2])
    parts.append(_pad(strings))
    tags = [
        *((_NEEDED, at[library]) for library in libraries),
        *(((_RUNPATH, at[runpath]),) if runpath else ()),
        *((_SONAME, at[soname]), (_HASH, hash_at), (_STRINGS, strings_at)),
        *((_SYMBOLS, symbols_at), (_SIZE, len(strings)), (_ENTRY, 24), (0, 0)),
    ]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    head = _make_header(machine, strings_at + len(parts[3]), len(dynamic))
    return head.ljust(code_at, b"\0") + b"".join(parts) + dynamic


def _make_header(machine: int, dynamic_at: int, dynamic_size: int) -> bytes:
    # The loader writes to the dynamic section, so it is on a separate page.
    moved = dynamic_at + _LARGEST_PAGE
    segments = (
        (_LOAD, _READ | _RUN, 0, 0, 0, dynamic_at, dynamic_at, _LARGEST_PAGE),
        *(
            (kind, _READ | _WRITE, dynamic_at, moved, moved, dynamic_size, dynamic_size, alignment)
            for kind, alignment in ((_LOAD, _LARGEST_PAGE), (_DYNAMIC, 8))
        ),
        (_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),
    )
    return (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack(
            "<HHIQQQIHHHHHH",
            *(3, machine, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT_SIZE, _SEGMENTS, 64, 0, 0),
        )
        + b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
    )


def _make_string_table(texts: list[str]) -> tuple[bytes, dict[str, int]]:
    """Return a string table and the offset of each text in it."""
    table, at = bytearray(b"\0"), {}
    for text in dict.fromkeys(texts):
        at[text] = len(table)
        table += text.encode() + b"\0"
    return bytes(table), at


def _make_hash_table(names: list[str]) -> bytes:
    buckets = max(1, len(names) // 2)
    first, following = [0] * buckets, [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        bucket = _hash_name(name) % buckets
        following[index], first[bucket] = first[bucket], index
    return struct.pack(
        f"<II{buckets}I{len(following)}I", buckets, len(following), *first, *following
    )


def _hash_name(name: str) -> int:
    """Return the System V ABI's hash of a symbol's name."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def _align(size: int) -> int:
    return size + -size % 16


def _pad(data: bytes) -> bytes:
    return data.ljust(_align(len(data)), b"\0")
