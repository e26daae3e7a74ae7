"""Compiles the cuDNN shim and what the real cuDNN finds beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from memcalc.errors import EstimateError

SHIM = "libmemcalc_cudnn.so"
_SOURCES = Path(__file__).parent / "sources"
_OF_SHIM = ("library.c", "descriptors.c", "handles.c")
_MAJORS = (12, 13)
"""Versions of CUDA that cuDNN 9.8 and later were built for."""


def sources() -> list[Path]:
    """All files that decide what is built."""
    return [*sorted(_SOURCES.iterdir()), Path(__file__)]


def compile(folder: Path, command: Sequence[str]) -> list[Path]:  # noqa: A001
    """Compile all libraries into a folder.

    Args:
        folder: an existing folder.
        command: a C compiler with options of the target, such as ``["cc"]`` or
            ``["zig", "cc", "-target", "aarch64-linux-gnu.2.17"]``.

    Returns:
        The libraries; the first is the shim.

    Raises:
        EstimateError: the compiler fails.
    """
    made = [_compile(command, folder / SHIM, _OF_SHIM, ("-ldl", "-lpthread"))]
    cuda = folder / "libmemcalc_cudnn_cuda.so"
    made.append(_compile(command, cuda, ("neighbour_cuda.c",), ("-Wl,-soname,libcuda.so.1",)))
    for major in _MAJORS:
        for name in ("cublasLt", "nvrtc"):
            named = (f"-DCUDA_MAJOR={major}", f"-Wl,-soname,lib{name}.so.{major}")
            target = folder / f"libmemcalc_cudnn_{name}{major}.so"
            made.append(_compile(command, target, (f"neighbour_{name}.c",), named))
    return made


def _compile(
    command: Sequence[str], target: Path, names: Sequence[str], options: Sequence[str]
) -> Path:
    done = subprocess.run(
        [
            *(*command, "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
            *("-w", "-o", str(target), *(str(_SOURCES / name) for name in names)),
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EstimateError(f"{target.name} cannot be compiled: {done.stderr.strip()[:500]}")
    return target
