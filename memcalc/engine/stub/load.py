"""Loads the stub driver in front of NVIDIA's libraries, in this process or a new one.

The loader searches symbols in the libraries that were loaded first, and uses a loaded library for
its soname. So the stub driver's library, and a shell for each soname that PyTorch is linked to, are
loaded first, whether or not NVIDIA's wheels are installed.
"""

import ctypes
import functools
import hashlib
import os
import platform
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from memcalc.children import command
from memcalc.engine.stub import build, elf
from memcalc.errors import EstimateError
from memcalc.files import artifact, lock
from memcalc.files.compiler import CompileError, system_compiler

_EXTRA = "libmemcalc_extra.so"
_RECORD = "stub.json"
_DRIVER, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
"""Libraries that programs open at run time, even if no library is linked to them."""
_SYSTEM_LIBRARIES = re.compile(
    r"ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|util|gomp|gfortran|numa|quadmath|z|c10|torch|shm)"
    r"[._-]"
)
"""Libraries of the system and of PyTorch; all others that PyTorch is linked to are NVIDIA's."""
_NVIDIA_LIBRARIES = re.compile(
    r"lib(cu(da|dart|blas|blasLt|dnn\w*|fft|file|pti|rand|solver|sparse|sparseLt|tensor)"
    r"|nccl|nvrtc|nvJitLink|nvToolsExt|nvshmem\w*|nvidia-ml)(-[0-9a-f]{8})?\.so"
)
_FUNCTION = re.compile(
    r"(__)?(cu|nv|nccl)[a-z]*[A-Z]\w*|__cuda\w+|(nccl|nvshmem|nvtx|cupti|curand)\w+"
)
"""Names of functions in NVIDIA's libraries."""
_RUNTIME = re.compile(r"libcudart(-[0-9a-f]{8})?\.so\.(\d+)")
_COMPILED_PATTERNS = ("*.so", "*/*.so", "*/*/*.so", "*/*/*/*.so")
"""Paths of compiled code in packages next to PyTorch."""
PROCESSES = "MEMCALC_STUB_PROCESSES"
"""Variable with the file in which processes write how much GPU memory they hold."""
_SELF_REFERENCE = "$ORIGIN"
_MOST_DEVICES = 64
"""GPUs of a simulated machine, as in stub.h."""
_PATIENCE = 120.0
"""Seconds to wait for another process that writes the same files."""


class Stub(msgspec.Struct, frozen=True):
    """The stub driver for an installation of PyTorch."""

    library: Path
    """The library with all functions."""
    folder: Path
    """Folder of the shells for the needed sonames, with a link to the library."""
    cuda: int
    """Version of CUDA that PyTorch is built for, such as 13000."""
    missing: tuple[str, ...] = ()
    """Functions of a newer PyTorch that the library lacks; they are made to do nothing."""


def prepare(root: Path, cuda: str, paths: Sequence[str] = ()) -> Stub:
    """Make the stub driver for an installation of PyTorch, or find it in the cache.

    Args:
        root: the folder of PyTorch's package.
        cuda: ``torch.version.cuda`` of that PyTorch.
        paths: other folders from which packages with compiled code are imported.

    Raises:
        EstimateError: there is no PyTorch, or the stub driver cannot be compiled or written.
    """
    major, minor = map(int, cuda.split("."))
    version = 1000 * major + 10 * minor
    own = sorted(Path(root, "lib").glob("lib*.so"))
    if not own:
        raise EstimateError(
            f"There is no PyTorch in {root}: type pip install torch, or name another Python."
        )
    library = libraries() / build.NAME
    packages = _find_compiled_packages(root, paths)
    digest = hashlib.sha256(f"{version}{build.mark(platform.machine())}{elf.machine()}".encode())
    for code in (__file__, elf.__file__):
        digest.update(Path(code).read_bytes())
    for file in (library, *own, *packages):
        status = file.stat()
        digest.update(f"{file}{status.st_size}{status.st_mtime_ns}".encode())
    folder = command.work_folder() / "stub" / digest.hexdigest()[:20]
    if command.UNLOADABLE.search(str(folder)):
        raise EstimateError(
            f"The stub driver cannot be loaded from {folder}: set TMPDIR to a folder whose name "
            "has no spaces, colons or semicolons."
        )
    record = folder / _RECORD
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_owner(folder)
        found = _read_record(record)
        if found is not None:
            return found
        with lock.hold(record, patience=_PATIENCE):
            found = _read_record(record)
            return found if found is not None else _write(folder, library, own, packages, version)
    except OSError as error:
        raise _cache_error(error) from None


def load_into_process(stub: Stub) -> None:
    """Load the stub driver into this process, and set the environment for its children.

    Call it once, before PyTorch is imported.
    """
    os.environ.update(environment(stub))
    for file in _files(stub):
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    reload()


def is_open() -> bool:
    """Return True if the stub driver is loaded in this process."""
    return hasattr(ctypes.CDLL(None), "memcalc_stub_maps")


@functools.cache
def maps() -> bool:
    """Return True if data copied to a simulated GPU can be read back; otherwise reads are zeros.

    Some hosts do not let a process reserve enough addresses (``ulimit -v``, strict overcommit).
    """
    return bool(ctypes.CDLL(None).memcalc_stub_maps())


def reload() -> None:
    """Make the stub driver read its environment variables again; a new fork does so itself."""
    ctypes.CDLL(None).memcalc_stub_reload()


def visible() -> list[int]:
    """Return the indices of the simulated GPUs that ``CUDA_VISIBLE_DEVICES`` names."""
    found = (ctypes.c_int * _MOST_DEVICES)()
    return found[: ctypes.CDLL(None).memcalc_stub_visible(found)]


@functools.cache
def function(name: str, returns: Any) -> Any:
    """Return a function of the stub driver, or None if NVIDIA's driver is loaded.

    ``returns``: the ctypes type of its result.
    """
    found = getattr(ctypes.CDLL(None), f"memcalc_stub_{name}", None)
    if found is not None:
        found.restype = returns
    return found


def environment(stub: Stub, processes: Path | None = None) -> dict[str, str]:
    """Return the variables that make a new process load the stub driver.

    They keep the user's own values.

    ``processes``: a file in which processes write how much GPU memory they hold, so that NVML shows
    it to others; it is made at first use.
    """
    found = {
        "LD_PRELOAD": _prepend(map(str, _files(stub)), os.environ.get("LD_PRELOAD"), r"[ :]"),
        "LD_LIBRARY_PATH": _prepend([str(stub.folder)], os.environ.get("LD_LIBRARY_PATH"), r"[:;]"),
        "TRITON_LIBCUDA_PATH": str(stub.folder),
        "MEMCALC_STUB_CUDA": str(stub.cuda),
    }
    return found if processes is None else {**found, PROCESSES: str(processes)}


def _files(stub: Stub) -> list[Path]:
    """Return the libraries to preload, in order: the cuDNN shim comes first."""
    first = [stub.library.with_name(build.SHIM), stub.folder / build.NAME]
    first += [stub.folder / _EXTRA] if stub.missing else []
    shells = {path for path in stub.folder.glob("*.so*") if not path.is_symlink()}
    return [*first, *sorted(shells - set(first))]


def _prepend(first: Iterable[str], others: str | None, separators: str) -> str:
    """Return a path list for a variable with entries put in front of its value."""
    entries = [*first, *(entry for entry in re.split(separators, others or "") if entry)]
    return ":".join(dict.fromkeys(entries))


# ---- the libraries


def libraries() -> Path:
    """Return the folder of the stub driver and the cuDNN shim, shipped or compiled into the cache.

    Raises:
        EstimateError: they are not shipped and cannot be compiled.
    """
    machine = platform.machine()
    kept = command.work_folder() / "stub" / build.mark(machine)
    if build.is_current(build.BUILT, machine):
        return build.BUILT
    if kept.exists():
        _check_owner(kept)
    if build.is_current(kept, machine):
        return kept
    compiler = system_compiler()
    if compiler is None:
        raise EstimateError(
            "The stub driver of this source checkout is not compiled, and there is no C compiler: "
            "install gcc or clang."
        )
    try:
        kept.mkdir(parents=True, exist_ok=True)
        with lock.hold(kept / build.MARK, patience=_PATIENCE):
            if not build.is_current(kept, machine):
                build.build(kept, compiler, machine)
    except CompileError as error:
        raise EstimateError(f"{error}.") from None
    except OSError as error:
        raise _cache_error(error) from None
    return kept


def _check_owner(folder: Path) -> None:
    """Check that no other user can write to a folder, because scripts load libraries from it.

    Raises:
        EstimateError: another user can.
    """
    for path in (folder, folder.parent, folder.parent.parent):
        status = path.stat()
        # In a sticky folder others can make files, but not move or remove this user's files.
        is_safe = path != folder and status.st_mode & stat.S_ISVTX
        is_open = status.st_mode & stat.S_IWOTH and not is_safe
        if status.st_uid not in (0, os.geteuid()) or is_open:
            raise EstimateError(
                f"Another user can write to {path}, from which libraries are loaded: set "
                "MEMCALC_CACHE to a folder of your own."
            )


def _cache_error(error: OSError) -> EstimateError:
    """Return the error for a folder that does not take the libraries."""
    return EstimateError(
        f"The stub driver cannot be kept in {command.work_folder()} ({error.strerror or error}): "
        "set MEMCALC_CACHE to a folder that can be written."
    )


# ---- shells


def _find_compiled_packages(root: Path, paths: Sequence[str]) -> list[Path]:
    """Return the compiled libraries of packages next to PyTorch and in other folders."""
    found = {
        path
        for site in {root.parent, *(Path(entry) for entry in paths if entry)}
        for pattern in _COMPILED_PATTERNS
        for path in site.glob(pattern)
        # Another PyTorch is hidden behind this one.
        if path.relative_to(site).parts[0] not in ("nvidia", "torch")
    }
    return sorted(found)


def _read_record(record: Path) -> Stub | None:
    """Return the stub driver of a record, or None if the record or a file is missing."""
    try:
        found = msgspec.json.decode(
            record.read_bytes(), type=Stub, dec_hook=lambda kind, value: kind(value)
        )
    except (OSError, msgspec.DecodeError):
        return None
    whole = all(file.exists() and file.stat().st_size for file in _files(found))
    return found if whole else None


def _write(folder: Path, library: Path, own: list[Path], packages: list[Path], cuda: int) -> Stub:
    """Write the shells, a library of the missing functions, and the record; return the stub."""
    machine = elf.machine()
    sonames, wanted = _list_requirements(own, packages, cuda)
    missing = tuple(sorted(wanted - elf.read(library).defined))
    link = folder / build.NAME
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    if missing:
        artifact.put(folder / _EXTRA, elf.make_shared_object(_EXTRA, missing, machine=machine))
    for soname in sorted(sonames):
        needed = [build.NAME, *([_EXTRA] if missing else [])]
        shell = elf.make_shared_object(
            soname, needed=needed, runpath=_SELF_REFERENCE, machine=machine
        )
        # The loader uses the soname inside a shell. If PyTorch sees a loaded file called
        # libcudart.so, it also loads NVIDIA's other libraries if they are installed.
        artifact.put(folder / soname.replace("libcudart.so", "cudart.so"), shell)
    # Triton links compiled code to the driver by this name.
    (folder / "libcuda.so").unlink(missing_ok=True)
    (folder / "libcuda.so").symlink_to(_DRIVER)
    stub = Stub(library=library, folder=folder, cuda=cuda, missing=missing)
    artifact.put(folder / _RECORD, msgspec.json.encode(stub, enc_hook=str))
    return stub


def _list_requirements(
    own: list[Path], packages: list[Path], cuda: int
) -> tuple[set[str], set[str]]:
    """Return the sonames of NVIDIA's libraries that are needed, and the functions needed there."""
    of_torch = [elf.read(path) for path in own]
    names = {path.name for path in own}
    sonames = {
        soname
        for one in of_torch
        for soname in one.needed
        if not _SYSTEM_LIBRARIES.match(soname) and soname not in names
    }
    objects = [*of_torch]
    for path in packages:
        try:
            one = elf.read(path, defined=False)
        except (ValueError, OSError):
            continue
        linked = {soname for soname in one.needed if _NVIDIA_LIBRARIES.match(soname)}
        runtimes = {match[2] for soname in linked if (match := _RUNTIME.match(soname))}
        # Code for another CUDA than PyTorch's does not run with it on a GPU either.
        if linked and runtimes <= {str(cuda // 1000)}:
            sonames |= linked
            objects.append(one)
    sonames |= {_DRIVER, _NVML}
    wanted = {name for one in objects for name in one.wanted if _FUNCTION.fullmatch(name)}
    return sonames, wanted - {name for one in of_torch for name in one.defined}
