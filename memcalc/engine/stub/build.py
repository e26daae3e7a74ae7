"""Compiles the stub driver and the cuDNN shim.

The compiler is that of the system, or Zig's.

It imports no package but memcalc, for the build of the wheel uses it.
"""

import hashlib
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from memcalc.files import compiler as compilers

NAME = "libmemcalc_stub.so"
SHIM = "libmemcalc_cudnn.so"
BUILT = Path(__file__).parent / "built"
"""Where the build of the wheel puts the libraries."""
MARK = "sources"
"""A file beside the libraries: the digest of their sources with the machine, and their sizes."""
SOURCES = Path(__file__).parent / "sources"
_OF_CUDNN = Path(__file__).parents[1] / "cudnn" / "sources"
NOOPS = SOURCES / "noops.txt"
"""Functions of CUDA 11, 12 and 13 that do nothing and return success; one that is written by hand
replaces its name here."""
ZIG_TARGETS = {
    "x86_64": "x86_64-linux-gnu.2.17",
    "aarch64": "aarch64-linux-gnu.2.17",
}
"""What Zig compiles for by machine: glibc 2.17 is manylinux2014's."""
_FLAGS = ("-std=gnu11", "-w", "-fvisibility=hidden", "-fPIC", "-shared", "-s")
_OF_SHIM = ("library.c", "descriptors.c", "handles.c")
_MAJORS = (12, 13)
"""Versions of CUDA that cuDNN 9.8 and later are built for."""


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
    """All files that the libraries are made of."""
    return sorted([*SOURCES.glob("*.[ch]"), *_OF_CUDNN.glob("*.[ch]"), NOOPS])


def mark(machine: str) -> str:
    """What libraries for a machine that were compiled from these sources are marked with."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sources():
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()[:20]}-{machine}"


def is_current(folder: Path, machine: str) -> bool:
    """Whether a folder has all libraries, whole, compiled from these sources for this machine."""
    try:
        first, *others = (folder / MARK).read_text().splitlines()
        sizes = dict(line.split() for line in others)
        whole = all((folder / name).stat().st_size == int(size) for name, size in sizes.items())
    except (OSError, ValueError):
        return False
    return first == mark(machine) and whole


def build(folder: Path, compiler: Sequence[str], machine: str) -> None:
    """Compile all libraries into a folder; each appears whole or not at all, and the mark last.

    Raises:
        CompileError: a library cannot be compiled.
        OSError: the folder cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        noops = Path(scratch, "noops.c")
        noops.write_text(_nothings(NOOPS.read_text().split()))
        stub = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        lines = [mark(machine)]
        for name, options in (
            (NAME, ["-O1", f"-Wl,-soname,{NAME}", *stub, str(noops), "-ldl", "-lpthread"]),
            *_libraries_of_cudnn(),
        ):
            command = [*compiler, *_FLAGS, "-o", str(Path(scratch, name)), *options]
            compilers.run(command, "the stub driver" if name == NAME else "the cuDNN shim")
            Path(scratch, name).replace(folder / name)
            lines.append(f"{name} {(folder / name).stat().st_size}")
        Path(scratch, MARK).write_text("\n".join(lines))
        Path(scratch, MARK).replace(folder / MARK)


def _libraries_of_cudnn() -> list[tuple[str, list[str]]]:
    """The shim and what the real cuDNN finds beside it: names, and options with their files."""
    shim = [*(str(_OF_CUDNN / name) for name in _OF_SHIM), "-ldl", "-lpthread"]
    found = [(SHIM, ["-O2", f"-Wl,-soname,{SHIM}", *shim]), _neighbour("cuda", "cuda", 1)]
    pairs = itertools.product(_MAJORS, ("cublasLt", "nvrtc"))
    return found + [_neighbour(name, f"{name}{major}", major) for major, name in pairs]


def _neighbour(source: str, name: str, version: int) -> tuple[str, list[str]]:
    """A library that the real cuDNN finds by a soname of NVIDIA's."""
    options = ["-O2", f"-DCUDA_MAJOR={version}", f"-Wl,-soname,lib{source}.so.{version}"]
    return f"libmemcalc_cudnn_{name}.so", [*options, str(_OF_CUDNN / f"neighbour_{source}.c")]


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
