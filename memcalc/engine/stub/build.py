"""Compiles the stub driver and the cuDNN shim, with the system's compiler or Zig.

It imports no other package than memcalc, because the build of the wheel uses it.
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
"""Folder of the libraries that the wheel ships."""
MARK = "sources"
"""File next to the libraries: the digest of their sources and machine, and their sizes."""
SOURCES = Path(__file__).parent / "sources"
_CUDNN_SOURCES = Path(__file__).parents[1] / "cudnn" / "sources"
NOOPS = SOURCES / "noops.txt"
"""Functions of CUDA 11, 12 and 13 that do nothing and return success, unless the sources define
them."""
ZIG_TARGETS = {
    "x86_64": "x86_64-linux-gnu.2.17",
    "aarch64": "aarch64-linux-gnu.2.17",
}
"""Zig's target by machine: glibc 2.17 is the version of manylinux2014."""
_FLAGS = ("-std=gnu11", "-w", "-fvisibility=hidden", "-fPIC", "-shared", "-s")
_SHIM_SOURCES = ("library.c", "descriptors.c", "handles.c")
_MAJORS = (12, 13)
"""Versions of CUDA for which cuDNN 9.8 and later are built."""


def works(compiler: Sequence[str]) -> bool:
    """Return True if a compiler can build a shared library with the system's headers."""
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
    """Return the command of Zig's C compiler for a machine, or None without ziglang."""
    if importlib.util.find_spec("ziglang") is None or machine not in ZIG_TARGETS:
        return None
    return [sys.executable, "-m", "ziglang", "cc", "-target", ZIG_TARGETS[machine]]


def sources() -> list[Path]:
    """Return all source files of the libraries."""
    return sorted([*SOURCES.glob("*.[ch]"), *_CUDNN_SOURCES.glob("*.[ch]"), NOOPS])


def mark(machine: str) -> str:
    """Return the digest of the sources and the machine, which marks the compiled libraries."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sources():
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()[:20]}-{machine}"


def is_current(folder: Path, machine: str) -> bool:
    """Return True if a folder has all libraries, complete and compiled from these sources."""
    try:
        first, *others = (folder / MARK).read_text().splitlines()
        sizes = dict(line.split() for line in others)
        whole = all((folder / name).stat().st_size == int(size) for name, size in sizes.items())
    except (OSError, ValueError):
        return False
    return first == mark(machine) and whole


def build(folder: Path, compiler: Sequence[str], machine: str) -> None:
    """Compile all libraries into a folder; each appears complete, and the mark last.

    Raises:
        CompileError: a library cannot be compiled.
        OSError: the folder cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        noops = Path(scratch, "noops.c")
        noops.write_text(_write_noops(NOOPS.read_text().split()))
        stub = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        lines = [mark(machine)]
        for name, options in (
            (NAME, ["-O1", f"-Wl,-soname,{NAME}", *stub, str(noops), "-ldl", "-lpthread"]),
            *_cudnn_libraries(),
        ):
            command = [*compiler, *_FLAGS, "-o", str(Path(scratch, name)), *options]
            compilers.run(command, "the stub driver" if name == NAME else "the cuDNN shim")
            Path(scratch, name).replace(folder / name)
            lines.append(f"{name} {(folder / name).stat().st_size}")
        Path(scratch, MARK).write_text("\n".join(lines))
        Path(scratch, MARK).replace(folder / MARK)


def _cudnn_libraries() -> list[tuple[str, list[str]]]:
    """Return names and compiler arguments of the cuDNN shim and the libraries next to cuDNN."""
    shim = [*(str(_CUDNN_SOURCES / name) for name in _SHIM_SOURCES), "-ldl", "-lpthread"]
    found = [(SHIM, ["-O2", f"-Wl,-soname,{SHIM}", *shim]), _neighbour("cuda", "cuda", 1)]
    pairs = itertools.product(_MAJORS, ("cublasLt", "nvrtc"))
    return found + [_neighbour(name, f"{name}{major}", major) for major, name in pairs]


def _neighbour(source: str, name: str, version: int) -> tuple[str, list[str]]:
    """Return name and compiler arguments of a library that cuDNN loads by NVIDIA's soname."""
    options = ["-O2", f"-DCUDA_MAJOR={version}", f"-Wl,-soname,lib{source}.so.{version}"]
    return f"libmemcalc_cudnn_{name}.so", [*options, str(_CUDNN_SOURCES / f"neighbour_{source}.c")]


def _write_noops(names: Sequence[str]) -> str:
    """Return C source of weak functions with these names, which return success."""
    attributes = '__attribute__((visibility("default"), weak, alias("memcalc_nothing")))'
    return "\n".join(
        (
            "static int memcalc_nothing(void) { return 0; }",
            *(f"{attributes} int {name}(void);" for name in names),
            "",
        )
    )
