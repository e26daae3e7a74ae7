"""Which shared libraries an ELF file names as needed."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB = 1, 5


def needed(path: Path) -> tuple[str, ...]:
    """Sonames in a library's DT_NEEDED entries; none for a file that is no 64-bit ELF library."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _needed(data) if data[:6] == b"\x7fELF\x02\x01" else ()
    except (OSError, ValueError, struct.error, IndexError):
        return ()


def _needed(data: mmap.mmap) -> tuple[str, ...]:
    start, (size, count) = (
        struct.unpack_from("<Q", data, 32)[0],
        struct.unpack_from("<HH", data, 54),
    )
    segments = [struct.unpack_from("<IIQQQQ", data, start + index * size) for index in range(count)]
    names: list[int] = []
    strings = 0
    for kind, _, offset, _, _, length in segments:
        if kind == _DYNAMIC:
            for tag, value in struct.iter_unpack("<QQ", data[offset : offset + length // 16 * 16]):
                if tag == _NEEDED:
                    names.append(value)
                elif tag == _STRTAB:
                    strings = value
    for kind, _, offset, address, _, length in segments:
        if kind == _LOAD and address <= strings < address + length:
            base = strings - address + offset
            return tuple(_string(data, base + name) for name in names)
    return ()


def _string(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode("ascii", "replace")
