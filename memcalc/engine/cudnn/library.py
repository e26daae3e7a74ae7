"""Finds the cuDNN that plans for a simulated GPU, or the reason why none can.

The library that would run on a GPU is the one installed next to PyTorch, else the one that
PyTorch's metadata requires. If that release cannot plan, the nearest later release that can is used
instead, as an assumption. This is close: of 280 convolutions in three directions on each of
7.5, 8.0 and 9.0, cuDNN 9.8 and 9.10 take equal workspaces in at least 100, 89 and 96 %. ResNet-50
on a T4 gives equal results with 9.8, 9.10 and 9.19, 0.03 % off a published reading.

If no library is available, the program runs with cuDNN off. PyTorch then uses its own convolutions,
which need less: 2,916 MB for this ResNet-50, 3.9 % less than read. The missing memory has no known
bound, so it is listed as uncounted.

``python -m memcalc.engine.cudnn.library REQUIREMENT`` fetches a release from PyPI into memcalc's
cache, once, and prints the folder of the library. The shim runs this when a program first needs
cuDNN, so that other programs never wait for it.
"""

import importlib.metadata
import itertools
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from memcalc.children.child import show
from memcalc.engine.environment import folders, uv
from memcalc.errors import EstimateError, MemcalcError
from memcalc.files.offline import MISSING
from memcalc.records.progress import Progress, listening, tell

Version = tuple[int, ...]
_PACKAGE = re.compile(r"(nvidia-cudnn-cu\d+)\s*\(?==\s*([0-9.]+)")
_FOLDER = "nvidia/cudnn/lib"
_OLDEST_CUDA = 12
"""cuDNN 9.8 and later are built for CUDA 12 and 13 only; PyTorch's CUDA may be older."""


class RefusedReleases(msgspec.Struct, frozen=True):
    """Releases that cannot plan for some simulated GPUs."""

    since: Version
    before: Version
    reason: str
    capability: Version | None = None
    """The compute capability that they cannot plan for, or None for all."""


REFUSED = (
    RefusedReleases((8,), (9,), "cuDNN 8 does not accept a description of a GPU"),
    # Release notes of cuDNN 9.8: CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION is new.
    RefusedReleases((9,), (9, 8), "cuDNN before 9.8 does not accept a description of a GPU"),
    # Tried: 9.8.0.87 and 9.10.2.21 end by a segmentation fault; 9.12, 9.13, 9.15 and 9.19 do not.
    RefusedReleases(
        (9, 8),
        (9, 12),
        "cuDNN before 9.12 crashes when it plans for compute capability 10.0",
        (10, 0),
    ),
)
_ASKED = ("9.8.0.87", "9.12.0.46")
"""Releases to use in place of a refused one, in order; PyPI has both."""


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """The cuDNN that plans for a simulated GPU."""

    reported: Version
    """The version that PyTorch sees: its own, even if another one plans."""
    planning: Version
    """The version that plans."""
    folder: str = ""
    """Folder of ``libcudnn.so.9``; empty if it is fetched when the program first needs it."""
    requirement: str = ""
    """pip's requirement, such as ``nvidia-cudnn-cu13==9.24.0.43``."""
    instead: str = ""
    """The reason why another version than PyTorch's plans; empty if PyTorch's does."""

    @property
    def assumption(self) -> str:
        """The sentence that another cuDNN than PyTorch's own planned; empty if its own did."""
        if not self.instead:
            return ""
        asked, own = _format_version(self.planning), _format_version(self.reported)
        return f"cuDNN {asked} planned the workspaces instead of {own} ({self.instead})"


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why no cuDNN can plan: the program runs with cuDNN off."""

    reason: str
    """A clause, such as ``cuDNN 8 does not accept a description of a GPU``."""
    reported: Version = ()
    """The version that PyTorch sees, because PyTorch checks it; empty if unknown."""

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The phrases for the memory that an estimate does not count."""
        return (
            f"workspaces of cuDNN are not counted ({self.reason}); "
            "convolutions and recurrent layers used PyTorch's own kernels",
        )


class _Package(msgspec.Struct, frozen=True):
    package: str
    version: Version
    folder: str = ""


def find(
    paths: Sequence[Path], capability: tuple[int, int], *, offline: bool = False
) -> Library | Missing:
    """Find the cuDNN that plans convolutions for a GPU; fetch nothing, import no PyTorch.

    Args:
        paths: folders of the engine's packages, PyTorch among them.
        capability: the GPU's compute capability.
        offline: nothing may be fetched, now or later.
    """
    own = _find_local(paths)
    required = _read_requirement(paths)
    if own is None and required is None:
        return Missing(reason="this PyTorch names no cuDNN, and none is installed beside it")
    reported = own.version if own is not None else required.version if required else ()
    if own is not None and _refusal(own.version, capability) is None:
        return Library(reported=reported, planning=own.version, folder=own.folder)
    package = required.package if required is not None else own.package if own is not None else ""
    asked = _nearest(reported, capability)
    if isinstance(asked, str):
        return Missing(reason=asked, reported=reported)
    # No package for CUDA 11 has cuDNN 9.8 or later.
    built = re.search(r"cu(\d+)$", package)
    major = max(int(built[1]) if built else _OLDEST_CUDA, _OLDEST_CUDA)
    requirement = f"nvidia-cudnn-cu{major}=={_format_version(asked, full=True)}"
    folder = find_in_cache(requirement)
    if folder is None and offline:
        return Missing(reason=f"{requirement} {MISSING}", reported=reported)
    if folder is None and (reason := fetch_refusal()):
        return Missing(reason=reason, reported=reported)
    return Library(
        reported=reported,
        planning=asked,
        folder="" if folder is None else str(folder),
        requirement=requirement,
        instead=_refusal(reported, capability) or "",
    )


def _refusal(version: Version, capability: Version) -> str | None:
    """Return why a release cannot plan for a GPU, or None if it can."""
    for refusal in REFUSED:
        if refusal.capability in (None, capability) and refusal.since <= version < refusal.before:
            return refusal.reason
    return None


def _nearest(version: Version, capability: Version) -> Version | str:
    """Return a release that can plan for a GPU, this or the nearest later one; else the reason."""
    reason = _refusal(version, capability)
    if reason is None:
        return version
    if version < (9,):
        return reason
    later = (_parse_version(text) for text in _ASKED if _parse_version(text) > version)
    return next((one for one in later if _refusal(one, capability) is None), reason)


def _find_local(paths: Sequence[Path]) -> _Package | None:
    """Return the cuDNN that PyTorch would load, from its package or the system, or None."""
    for place in paths:
        for found in sorted(place.glob("nvidia_cudnn_cu*-*.dist-info"), reverse=True):
            package, _, version = found.name.removesuffix(".dist-info").rpartition("-")
            folder = place / _FOLDER
            if any(folder.glob("libcudnn.so.[0-9]")):
                return _Package(package.replace("_", "-"), _parse_version(version), str(folder))
    for folder in _list_system_folders(paths):
        for file in sorted(folder.glob("libcudnn.so.*.*.*")):
            version = file.name.removeprefix("libcudnn.so.")
            if re.fullmatch(r"\d+\.\d+\.\d+", version):
                return _Package("", _parse_version(version), str(folder))
    return None


def _list_system_folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders of libraries of conda, Debian's packages and CUDA's installer."""
    yield from (path.parents[1] for path in paths if path.name == "site-packages")
    yield Path(f"/usr/lib/{platform.machine()}-linux-gnu")
    yield Path("/usr/local/cuda/lib64")


def _read_requirement(paths: Sequence[Path]) -> _Package | None:
    """Return the package and version of cuDNN that PyTorch's metadata requires, or None."""
    installed = importlib.metadata.distributions(name="torch", path=[str(path) for path in paths])
    lines = (line for found in itertools.islice(installed, 1) for line in found.requires or ())
    named = next(filter(None, map(_PACKAGE.match, lines)), None)
    return _Package(named[1], _parse_version(named[2])) if named else None


def _parse_version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _format_version(version: Version, *, full: bool = False) -> str:
    return ".".join(str(part) for part in (version if full else version[:2]))


_SIZES = {"nvidia-cudnn-cu12": "0.7 GB", "nvidia-cudnn-cu13": "0.4 GB"}
"""Sizes of the downloads; unpacked they take 0.5 to 1 GB."""
_ROOM = 1.2e9
"""Bytes of disk that an installation needs."""
_UNWANTED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME")
"""Variables of a program over the stub driver that a plain Python must not have."""


def find_in_cache(requirement: str) -> Path | None:
    """Return the folder of a release that was fetched before, or None."""
    path = folders.locate(_folder_name(requirement))
    return uv.find_site(path) / _FOLDER if folders.read_marker(path) is not None else None


def fetch_refusal() -> str:
    """Return why this machine cannot fetch packages; empty if it can."""
    return "" if uv.is_reachable() else "there is neither pip nor uv to fetch cuDNN with"


def command(requirement: str) -> str:
    """Return a shell command that fetches a release if necessary and prints its folder."""
    home = str(Path(__file__).resolve().parents[3])
    unset = (part for name in _UNWANTED for part in ("-u", name))
    parts = ("env", *unset, f"PYTHONPATH={home}", sys.executable, "-m", __spec__.name, requirement)
    return shlex.join(parts)


def fetch(requirement: str) -> Path:
    """Return the folder of a release such as ``nvidia-cudnn-cu13==9.24.0.43``; fetch it if missing.

    Raises:
        EstimateError: it cannot be fetched or written.
    """
    package, _, version = requirement.partition("==")
    size = _SIZES.get(package, "up to 0.7 GB")

    def fill(venv: uv.Uv) -> None:
        tell(Progress(f"fetching {requirement} ({size}), once"))
        venv.install({package: version}, requirement)
        if not (uv.find_site(venv.folder) / _FOLDER).is_dir():
            raise EstimateError(f"{requirement} has no {_FOLDER}.")

    try:
        folder = folders.make(_folder_name(requirement), requirement, _ROOM, fill)
        return uv.find_site(folder) / _FOLDER
    except EstimateError as error:
        raise EstimateError(
            f"cuDNN cannot be fetched ({str(error).rstrip('.')}): type pip install {requirement}, "
            "or add --offline, which leaves cuDNN's workspaces out."
        ) from None


def _folder_name(requirement: str) -> str:
    """Return the name of a release's folder."""
    return requirement.replace("==", "-")


def _say(progress: Progress) -> None:
    """Show the text of a progress report."""
    if progress.text:
        show(f"memcalc: {progress.text}\n")


if __name__ == "__main__":
    try:
        with listening(_say):
            print(fetch(sys.argv[1]))
    except MemcalcError as error:
        sys.exit(f"memcalc: {error}")
