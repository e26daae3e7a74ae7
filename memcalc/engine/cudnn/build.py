"""Compiles the cuDNN shim, and the libraries that the real cuDNN finds beside it.

It imports no package but memcalc, for the build of the wheel uses it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from memcalc.files import compiler as compilers

SHIM = "libmemcalc_cudnn.so"
SHIPPED = Path(__file__).parent / "built"
"""Where the build of the wheel puts the libraries."""
MARK = "sources"
"""A file beside the libraries that names the sources they were compiled from."""
_SOURCES = Path(__file__).parent / "sources"
_FLAGS = ("-std=gnu11", "-O2", "-w", "-fvisibility=hidden", "-fPIC", "-shared", "-s")
_OF_SHIM = ("library.c", "descriptors.c", "handles.c")
_MAJORS = (12, 13)
"""Versions of CUDA that cuDNN 9.8 and later are built for."""


def sources() -> list[Path]:
    """All files that the libraries are made of."""
    return sorted(_SOURCES.glob("*.[ch]"))


def mark() -> str:
    """What libraries compiled from these sources are marked with."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def build(folder: Path, compiler: Sequence[str]) -> list[Path]:
    """Compile all libraries into a folder; each appears whole or not at all, and the mark last.

    Args:
        folder: an existing folder.
        compiler: a command, such as ``["cc"]``; its options decide for which machine.

    Returns:
        The libraries; the first is the shim.

    Raises:
        CompileError: a library cannot be compiled.
        OSError: the folder cannot be written.
    """
    made = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, options in _libraries():
            command = [*compiler, *_FLAGS, "-o", str(Path(scratch, name)), *options]
            compilers.run(command, "the cuDNN shim")
            made.append(Path(scratch, name).replace(folder / name))
        Path(scratch, MARK).write_text(mark())
        Path(scratch, MARK).replace(folder / MARK)
    return made


def is_current(folder: Path) -> bool:
    """Whether a folder has all libraries, compiled from these sources."""
    try:
        return (folder / MARK).read_text() == mark()
    except OSError:
        return False


def _libraries() -> list[tuple[str, list[str]]]:
    """Names of the libraries, and files and options of each."""
    shim = [*(str(_SOURCES / name) for name in _OF_SHIM), "-ldl", "-lpthread"]
    found = [(SHIM, [f"-Wl,-soname,{SHIM}", *shim]), _neighbour("cuda", "cuda", 1)]
    for major in _MAJORS:
        for name in ("cublasLt", "nvrtc"):
            found.append(_neighbour(name, f"{name}{major}", major))
    return found


def _neighbour(source: str, name: str, version: int) -> tuple[str, list[str]]:
    """A library that the real cuDNN finds by a soname of NVIDIA's."""
    options = [f"-DCUDA_MAJOR={version}", f"-Wl,-soname,lib{source}.so.{version}"]
    return f"libmemcalc_cudnn_{name}.so", [*options, str(_SOURCES / f"neighbour_{source}.c")]
