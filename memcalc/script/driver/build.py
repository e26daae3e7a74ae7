"""Builds the stand-in libraries that one installation of PyTorch's CUDA build links to.

Functions that must do something are written by hand (``sources/``); all others that PyTorch or
CUDA's headers name do nothing and return success. Built once for each version of PyTorch, with the
C compiler of the system, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from memcalc.errors import EstimateError
from memcalc.files import cache, compiled, lock
from memcalc.script.driver import elf

SOURCES = Path(__file__).parent / "sources"
_OURS = re.compile(
    r"ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|util|gomp|gfortran|numa|c10|torch|shm)[._-]"
)
"""Libraries of the system and of PyTorch itself."""
_BUNDLED = re.compile(r"-[0-9a-f]{8}$")
"""What a wheel adds to the name of a library that it brings along."""
_UNVERSIONED = {
    "libnccl": r"nccl",
    "libnvshmem_host": r"nvshmem",
    "libcufile": r"cuFile",
    "libcusparseLt": r"cusparseLt",
    "libcurand": r"curand",
    "libcuda": r"cu(?!File)[A-Z]",
    "libcupti": r"cupti",
    "libnvToolsExt": r"nvtx",
    "libcudnn": r"cudnn",
}
_HEADERS = {
    "libcuda": (
        "cuda.h",
        re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w+)\s*\(|#define\s+cu\w+\s.*?\b(cu[A-Z]\w+_v\d)\b"),
    ),
    "libcudart": ("cuda_runtime_api.h", re.compile(r"\bCUDARTAPI\s+(cuda[A-Z]\w+)\s*\(")),
}
"""Whose functions are made whether or not PyTorch asks for them: extensions do."""
_OF_COMPILER = "crt/host_defines.h"
"""The one header of CUDA's compiler that those of its runtime include in C."""
_WITH_COMPILER = "nvidia/cuda_nvcc/include"
"""Where the compiler's wheels of CUDA 11 and 12 put it, with none of the runtime's."""
_DRIVER = "libcuda.so.1"
_OPENED = ("libnvidia-ml.so.1",)
"""Linked to by nothing, and opened by PyTorch as it runs."""
_DONE = "built"
_PATIENCE = 120.0
"""Seconds to wait for another process that builds the same."""
_STUBS = """
#include <stdio.h>
static int called(const char *name) {
  if (getenv("MEMCALC_DRIVER_TRACE")) fprintf(stderr, "[stand-in driver] %s\\n", name);
  return 0;
}
"""
_ASK = """
import importlib.util, json, pathlib, re, sys
spec = importlib.util.find_spec("torch")
if spec is None: print(json.dumps({})); sys.exit()
root = pathlib.Path(spec.origin).parent
text = (root / "version.py").read_text()
value = lambda name: (re.findall(rf"^{name}[^=]*= *'([^']*)'", text, re.M) or [""])[-1]
print(json.dumps({"root": str(root), "torch": value("__version__"), "cuda": value("cuda")}))
"""


class Installed(msgspec.Struct, frozen=True):
    """PyTorch as a Python has it; nothing is imported to find out."""

    root: str = ""
    torch: str = ""
    cuda: str = ""
    """Version of CUDA it was built for; empty: a build without CUDA."""


def installed(python: str) -> Installed:
    """Which PyTorch a Python would import.

    Raises:
        EstimateError: the Python does not run, or is none, or has no CUDA build.
    """
    try:
        done = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EstimateError(f"{python} does not run: {error}.") from None
    try:
        found = msgspec.json.decode(done.stdout, type=Installed)
    except msgspec.DecodeError:
        raise EstimateError(
            f"{python} does not answer as a Python does: name the one of an environment with "
            "PyTorch's CUDA build, as in --python venv/bin/python."
        ) from None
    if not found.cuda:
        what = f"PyTorch {found.torch} without CUDA" if found.torch else "no PyTorch"
        raise EstimateError(
            f"{python} has {what}: the driver back-end runs PyTorch's CUDA build (Linux, x86-64); "
            "in an environment of its own, type pip install torch, and name its Python with "
            "--python."
        )
    return found


def libraries(found: Installed) -> Path:
    """The folder of the stand-in libraries for this PyTorch; built if it is not there.

    Raises:
        EstimateError: there is no C compiler, no CUDA headers, or they do not go together.
    """
    compiler = compiled.compiler()
    if compiler is None:
        raise EstimateError(
            "The driver back-end needs a C compiler: install gcc or clang, or name one in CC."
        )
    include = _headers(found)
    # Its wheel has one for each CUDA and opens PyTorch's: a second runtime would hide the first.
    major = found.cuda.split(".")[0]
    more = sorted(Path(found.root).parent.glob(f"bitsandbytes/libbitsandbytes_cuda{major}*.so"))
    named = sorted(Path(found.root, "lib").glob("lib*.so"))
    digest = hashlib.sha256(f"{found}{include}".encode())
    for file in (*sorted(SOURCES.iterdir()), Path(__file__), Path(elf.__file__)):
        digest.update(file.read_bytes())
    for file in (*named, *more):
        digest.update(f"{file}{file.stat().st_size}{file.stat().st_mtime_ns}".encode())
    folder = cache.folder() / "driver" / digest.hexdigest()[:20]
    if (folder / _DONE).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock.held(folder / _DONE, patience=_PATIENCE):
        if not (folder / _DONE).exists():
            _build([*named, *more], folder, include, compiler)
            (folder / _DONE).touch()
    return folder


def _build(named: list[Path], folder: Path, include: list[Path], compiler: str) -> None:
    needed = [elf.needs(path) for path in named]
    own = {path.name for path in named}
    sonames = {
        library
        for needs in needed
        for library in needs.libraries
        if not _OURS.match(library) and library not in own
    }
    symbols = {symbol for needs in needed for symbol in needs.symbols}
    # The others take memory from the driver.
    for soname in sorted(sonames | {_DRIVER, *_OPENED}, key=lambda name: name != _DRIVER):
        _one(soname, symbols, folder, include, compiler)


def _one(
    soname: str, symbols: set[elf.Wanted], folder: Path, include: list[Path], compiler: str
) -> None:
    base = _BUNDLED.sub("", soname.split(".so")[0])
    source = SOURCES / f"{base}.c"
    text = source.read_text() if source.exists() else '#include "device.h"\n'
    names = _names(base, soname, symbols, include)
    if source.exists():
        names -= _written(source, include, compiler)
    stubs = (f'EXPORT int {name}(void) {{ return called("{name}"); }}' for name in sorted(names))
    code = folder / f"{base}.c"
    code.write_text("\n".join((text, _STUBS, *stubs, "")))
    command = [
        *(compiler, "-O1", "-w", "-shared", "-fPIC"),
        *_searched(include),
        *(f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN", "-o", str(folder / soname), str(code)),
    ]
    versions = {symbol.version for symbol in symbols if symbol.library == soname} - {""}
    if versions:
        script = folder / f"{base}.map"
        script.write_text(f"{max(versions)} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={script}")
    if soname != _DRIVER:
        command += [str(folder / _DRIVER), "-ldl", "-lpthread"]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    if compiled.returncode:
        raise EstimateError(
            f"The stand-in for {soname} cannot be compiled: {compiled.stderr.strip()[:500]}"
        )


def _written(source: Path, include: list[Path], compiler: str) -> set[str]:
    """Functions that are written by hand, also by macros."""
    command = [compiler, "-E", "-P", *_searched(include), str(source)]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return set(re.findall(r'visibility\("default"\)\)\)[^(;{]*?(\w+)\s*\(', text))


def _names(base: str, soname: str, symbols: set[elf.Wanted], include: list[Path]) -> set[str]:
    """Functions that a library has to have."""
    names = {symbol.name for symbol in symbols if symbol.library == soname}
    pattern = _UNVERSIONED.get(base)
    if pattern is not None:
        names |= {s.name for s in symbols if not s.library and re.match(pattern, s.name)}
    if base in _HEADERS:
        header, declared = _HEADERS[base]
        text = (include[0] / header).read_text(encoding="utf-8", errors="replace")
        names |= {name for found in declared.finditer(text) for name in found.groups() if name}
    return names


def _searched(include: list[Path]) -> list[str]:
    return [f"-I{place}" for place in (SOURCES, *include)]


def _headers(found: Installed) -> list[Path]:
    """Where CUDA's headers are, of the version that PyTorch was built for.

    Those of the runtime's wheel include the compiler's, which are in wheels that PyTorch does not
    ask for (nvidia-cuda-crt of CUDA 13, nvidia-cuda-nvcc-cu11 and -cu12 before); a toolkit has
    them, and so has Triton since 3.0.

    Raises:
        EstimateError: there are none.
    """
    major = found.cuda.split(".")[0]
    site = Path(found.root).parent
    places = [place for place in _places(site) if _major(place) == major]
    compilers = [*places, site / _WITH_COMPILER]
    of_compiler = [place for place in compilers if (place / _OF_COMPILER).is_file()]
    if not places or not of_compiler:
        wheels = ("runtime", "crt") if int(major) > 12 else ("runtime-cu", "nvcc-cu")
        named = (f"nvidia-cuda-{wheel}{major if wheel[-1] == 'u' else ''}" for wheel in wheels)
        raise EstimateError(
            f"There are no headers of CUDA {major} here: type pip install {' '.join(named)}, "
            "or name a toolkit in CUDA_HOME."
        )
    return [places[0], *([] if places[0] in of_compiler else of_compiler[:1])]


def _places(site: Path) -> list[Path]:
    """Where headers may be, beside packages or in a toolkit."""
    return [
        *sorted(site.glob("nvidia/cu*/include")),
        *sorted(site.glob("nvidia/cuda_runtime/include")),
        *([Path(os.environ["CUDA_HOME"]) / "include"] if "CUDA_HOME" in os.environ else []),
        Path("/usr/local/cuda/include"),
        *sorted(Path("/usr/local").glob("cuda-*/include")),
        site / "triton/backends/nvidia/include",
        *(Path(entry) / "triton/backends/nvidia/include" for entry in sys.path),
    ]


def _major(place: Path) -> str | None:
    """The version of CUDA whose headers these are; ``None``: the runtime's are not all here."""
    if not all((place / name).is_file() for name in ("cuda.h", "driver_types.h")):
        return None
    text = (place / "cuda_runtime_api.h").read_text(errors="replace")
    version = re.search(r"#define CUDART_VERSION\s+(\d+)", text)
    return None if version is None else str(int(version[1]) // 1000)
