"""Compiles the stub driver's library: by the C compiler of the system, or by Zig's.

It imports no package but memcalc, for the build of the wheel uses it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from memcalc.files import compiler as compilers

NAME = "libmemcalc_stub.so"
SOURCES = Path(__file__).parent / "sources"
NOOPS = SOURCES / "noops.txt"
"""Functions of CUDA 11, 12 and 13 that do nothing and return success; one that is written by hand
replaces its name here."""
ZIG_TARGETS = {
    "x86_64": "x86_64-linux-gnu.2.17",
    "aarch64": "aarch64-linux-gnu.2.17",
}
"""What Zig compiles for by machine: glibc 2.17 is manylinux2014's."""
_FLAGS = ("-std=gnu11", "-O1", "-w", "-fvisibility=hidden", "-fPIC", "-shared", "-s")


def works(compiler: Sequence[str]) -> bool:
    """Whether a compiler makes shared libraries here, with the headers of the system."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "tried.c")
        source.write_text("#include <dlfcn.h>\n#include <pthread.h>\n#include <stdio.h>\n")
        command = [*compiler, "-shared", "-fPIC", "-o", str(Path(scratch, "tried.so")), str(source)]
        try:
            compilers.run([*command, "-ldl", "-lpthread"], "a library")
        except compilers.CompileError:
            return False
        return True


def zig(machine: str) -> list[str] | None:
    """The command of Zig's C compiler for a machine; ``None``: this Python has no ziglang."""
    if importlib.util.find_spec("ziglang") is None or machine not in ZIG_TARGETS:
        return None
    return [sys.executable, "-m", "ziglang", "cc", "-target", ZIG_TARGETS[machine]]


def sources() -> list[Path]:
    """All files that the library is made of."""
    return sorted([*SOURCES.glob("*.[ch]"), NOOPS])


def mark() -> str:
    """A symbol by which a library shows that it was built of these sources."""
    digest = hashlib.sha256(_nothings([]).encode())
    for path in sources():
        digest.update(path.read_bytes())
    return f"memcalc_stub_sources_{digest.hexdigest()[:20]}"


def build(target: Path, compiler: Sequence[str]) -> None:
    """Compile the library; the file appears whole or not at all.

    Args:
        target: the file.
        compiler: a command.

    Raises:
        CompileError: it cannot be compiled.
        OSError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        noops, made = Path(scratch, "noops.c"), Path(scratch, NAME)
        noops.write_text(_nothings([*NOOPS.read_text().split(), mark()]))
        files = [str(path) for path in sources() if path.suffix == ".c"]
        command = [*compiler, *_FLAGS, f"-Wl,-soname,{NAME}", "-o", str(made), *files, str(noops)]
        compilers.run([*command, "-ldl", "-lpthread"], "the stub driver")
        made.replace(target)


def _nothings(names: Sequence[str]) -> str:
    """One function under many names, each of which gives way to a function written by hand."""
    attributes = '__attribute__((visibility("default"), weak, alias("memcalc_nothing")))'
    return "\n".join(
        (
            "static int memcalc_nothing(void) { return 0; }",
            *(f"{attributes} int {name}(void);" for name in names),
            "",
        )
    )
