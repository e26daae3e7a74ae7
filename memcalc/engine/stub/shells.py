"""Writes shared objects without a compiler.

A *shell* has a soname of NVIDIA's and no symbols: a program that asks the loader for that soname
gets it, and with it the stub driver that it needs. Symbols of the stub driver have no versions; the
loader takes them for versioned ones as long as the library they are looked for in is another one
than the version names, which is why shells have none themselves.
Source: ELF-64 Object File Format 1.5, and the System V ABI, "Hash Table".
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable

from memcalc.errors import EstimateError

MACHINES = {"x86_64": 62, "aarch64": 183}
"""Numbers in ``e_machine`` of the machines that are known here."""
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


def machine() -> int:
    """The number of this machine in ELF files.

    Raises:
        EstimateError: it is none for which the stub driver is made.
    """
    found = MACHINES.get(platform.machine())
    if found is None:
        raise EstimateError(
            f"The stub driver runs on x86-64 and aarch64 alone, and this machine is "
            f"{platform.machine()}: add --method analytic."
        )
    return found


def shared_object(
    soname: str,
    symbols: Iterable[str] = (),
    *,
    needed: Iterable[str] = (),
    runpath: str = "",
    machine: int = MACHINES["x86_64"],
) -> bytes:
    """A shared object whose functions all return 0.

    Args:
        soname: its name for the loader.
        symbols: names of its functions.
        needed: sonames of the libraries that are loaded with it.
        runpath: where these are looked for; ``$ORIGIN`` is its own folder.
        machine: number of the machine, one of ``MACHINES``.
    """
    names, libraries = sorted(set(symbols)), list(needed)
    strings, at = _string_table([soname, *libraries, *names, *([runpath] if runpath else [])])
    code = _RETURN_ZERO[machine]
    parts = [_padded(code)]
    code_at = _aligned(_HEADER + _SEGMENTS * _SEGMENT_SIZE)
    symbols_at = code_at + len(parts[0])
    parts.append(
        bytes(24)
        + b"".join(
            struct.pack("<IBBHQQ", at[name], _GLOBAL_FUNCTION, 0, 1, code_at, len(code))
            for name in names
        )
    )
    hash_at = symbols_at + len(parts[1])
    parts.append(_padded(_hash_table(names)))
    strings_at = hash_at + len(parts[2])
    parts.append(_padded(strings))
    tags = [
        *((_NEEDED, at[library]) for library in libraries),
        *(((_RUNPATH, at[runpath]),) if runpath else ()),
        *((_SONAME, at[soname]), (_HASH, hash_at), (_STRINGS, strings_at)),
        *((_SYMBOLS, symbols_at), (_SIZE, len(strings)), (_ENTRY, 24), (0, 0)),
    ]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    head = _head(machine, strings_at + len(parts[3]), len(dynamic))
    return head.ljust(code_at, b"\0") + b"".join(parts) + dynamic


def _head(machine: int, dynamic_at: int, dynamic_size: int) -> bytes:
    # The loader writes into the dynamic section, which so lies on a page of its own.
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


def _string_table(texts: list[str]) -> tuple[bytes, dict[str, int]]:
    table, at = bytearray(b"\0"), {}
    for text in dict.fromkeys(texts):
        at[text] = len(table)
        table += text.encode() + b"\0"
    return bytes(table), at


def _hash_table(names: list[str]) -> bytes:
    buckets = max(1, len(names) // 2)
    first, following = [0] * buckets, [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        bucket = _hash(name) % buckets
        following[index], first[bucket] = first[bucket], index
    return struct.pack(
        f"<II{buckets}I{len(following)}I", buckets, len(following), *first, *following
    )


def _hash(name: str) -> int:
    """The hash that the System V ABI gives for names of symbols."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def _aligned(size: int) -> int:
    return size + -size % 16


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")
