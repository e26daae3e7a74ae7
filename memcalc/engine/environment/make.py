"""Fills the folders of an engine environment: PyTorch's CUDA build, and what goes with it.

Whoever listens is told how far it is.
"""

import contextlib
import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from memcalc.engine.environment import installed, installer, layers
from memcalc.engine.environment.installed import Release
from memcalc.engine.environment.installer import Failure
from memcalc.engine.environment.layers import AbsentError, Built, Layer
from memcalc.errors import EstimateError
from memcalc.files.offline import HOW, is_offline
from memcalc.records.progress import Progress, tell

_TO_FETCH = "0.5 to 0.9 GB to fetch, 1 to 2 GB on disk"
_WHEEL = 0.9e9
"""Bytes; the largest wheels of 2.4 to 2.15 are of 0.9 GB."""
_UNPACKED = 2.1
"""Times a wheel's bytes; 1.85 to 2.1 for PyTorch 2.4 to 2.15."""
_DOWNLOAD = 0.7
"""Of pip's time that a download takes; the rest unpacks."""
_OWN_INDEX = "https://download.pytorch.org/whl/"
"""PyTorch's own index of builds for other versions of CUDA."""
_ROUNDS = 8
"""Dependencies of dependencies that are followed."""


def torch(release: Release | None) -> Layer:
    """PyTorch's CUDA build; without a release the newest that is here, else the newest.

    Raises:
        EstimateError: it cannot be fetched, or is none for CUDA.
    """
    return _made(
        f"PyTorch {release or ''}".strip() + "'s CUDA build",
        lambda: newest("torch", release, _is_cuda(release)),
        lambda target: _build_torch(release, target),
    )


def single(package: str, release: Release) -> Layer:
    """A package without its dependencies.

    Raises:
        EstimateError: it cannot be fetched.
    """

    def build(target: Path) -> Built:
        tell(Progress(f"fetching {package} {release}, once"))
        notes = install((release.requirement(package),), target)
        found = installed.packages([str(target)]).get(package)
        if found is None:
            raise EstimateError(f"The installer left no {package} behind.")
        return Built(f"{package}-{found.version}-{layers.suffix()}", notes)

    return _made(f"{package} {release}", lambda: newest(package, release), build)


def rest(wanted: Sequence[Requirement], here: Mapping[str, installed.Package]) -> Layer:
    """What is missing of some requirements, and of theirs.

    Raises:
        EstimateError: it cannot be fetched.
    """
    texts = sorted(_plain(found) for found in wanted)
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]
    name = f"packages-{digest}-{layers.suffix()}"

    def ready() -> Layer | None:
        found = layers.complete(name)
        return found if found and not _missing_in(found.path, wanted, here) else None

    def build(target: Path) -> Built:
        tell(Progress(f"fetching {', '.join(texts)}, once"))
        notes: tuple[str, ...] = ()
        for _ in range(_ROUNDS):
            lacking = _missing_in(target, wanted, here)
            if not lacking:
                return Built(name, notes)
            notes += install(tuple(sorted({_plain(one) for one in lacking})), target)
        raise EstimateError(f"Packages that {', '.join(texts)} need conflict with each other.")

    return _made(", ".join(texts), ready, build)


def _made(what: str, ready: Callable[[], Layer | None], build: Callable[[Path], Built]) -> Layer:
    """The folder that is ready, or is built now."""
    if (found := ready()) is not None:
        return found
    if is_offline():
        raise EstimateError(
            f"{what} is not in {layers.folder()} yet, and {HOW} forbids fetching it: "
            "run the same command once without that; it is kept."
        )
    return layers.make(ready, build)


def _build_torch(release: Release | None, target: Path) -> Built:
    named = f"PyTorch {release or ''}".strip()
    tell(Progress(f"{named} with CUDA: {_TO_FETCH}, once"))
    layers.require_room(layers.folder(), _WHEEL * (1 + _UNPACKED), named)
    build = release.build if release else None
    text = release.requirement("torch") if release else "torch"
    index = _OWN_INDEX + build if build else None
    notes = install((text,), target, torch=named, extra_index=index)
    found = installed.torch_in([str(target)])
    assert found is not None
    local = f"+{build}" if build else ""
    return Built(f"torch-{found.release}{local}-{layers.suffix()}", notes)


def install(
    requirements: tuple[str, ...],
    target: Path,
    *,
    torch: str = "",
    extra_index: str | None = None,
) -> tuple[str, ...]:
    """Install into an empty folder, the second time without the machine's own constraints.

    ``torch``: what PyTorch's large wheel is called, if that is what is installed; ``extra_index``:
    one more index that may have it. Find-links go with the constraints.

    Returns:
        What was done otherwise than usual.

    Raises:
        EstimateError: it cannot be installed.
    """
    tool = installer.tool()
    job = installer.Job(
        requirements=requirements,
        target=target,
        scratch=target.parent / "scratch",
        large=bool(torch),
        extra_index=extra_index,
    )
    failures: list[Failure] = []
    watch = _watch(job.scratch, torch) if torch else lambda: None
    for plain in (False, True):
        if any(failure.network for failure in failures):
            break
        failure = installer.install(job, tool, plain=plain, watch=watch)
        if failure is None and torch:
            wrong = _require_cuda(target)
            failure = Failure(wrong) if wrong else None
        if failure is None:
            return (installer.PLAIN,) if plain else ()
        failures.append(failure)
        if failure.full:
            raise EstimateError(
                f"The disk of {layers.folder()} is full: make room, or set MEMCALC_CACHE to a "
                "folder on a larger disk."
            )
        if torch:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
    raise _error(torch or ", ".join(requirements), failures)


def newest(
    package: str, release: Release | None, fits: Callable[[Path], bool] | None = None
) -> Layer | None:
    """The newest complete folder of a package for this Python; ``None``: there is none."""
    found: list[tuple[list[int], Layer]] = []
    ending = f"-{layers.suffix()}"
    for path in layers.folder().glob(f"{package}-*{ending}"):
        version = path.name[len(package) + 1 : -len(ending)].split("+")[0]
        if not version.replace(".", "").isdigit():
            continue
        if fits is None and release is not None and not release.matches(version):
            continue
        layer = layers.complete(path.name) if fits is None or fits(path) else None
        if layer is not None:
            found.append(([int(number) for number in version.split(".")], layer))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _is_cuda(release: Release | None) -> Callable[[Path], bool]:
    def fits(path: Path) -> bool:
        found = installed.torch_in([str(path)])
        if found is None or not found.cuda:
            return False
        return release is None or release.matches(found.version, found.cuda)

    return fits


def _require_cuda(target: Path) -> str | None:
    """What is wrong with an installed PyTorch; ``None``: it is a CUDA build."""
    found = installed.torch_in([str(target)])
    if found is None:
        return "the installer left no PyTorch behind"
    if not found.cuda or not (Path(found.root) / "lib" / "libtorch_cuda.so").is_file():
        return (
            f"the one for {os.uname().machine} that was installed is {found.version}, a build "
            "without CUDA; name a newer release, as in --torch 2.14"
        )
    return None


def _watch(scratch: Path, named: str) -> Callable[[], None]:
    """Tells how much of PyTorch's wheel pip has downloaded; uv does not show it."""
    whole = 0.0

    def told() -> None:
        nonlocal whole
        with contextlib.suppress(OSError):
            seen = sum(path.stat().st_size for path in scratch.glob("pip-*/*.whl"))
            whole = max(whole, min(_DOWNLOAD * seen / _WHEEL, 0.99))
            what = "unpacking" if whole and not seen else "fetching"
            what += f" ({layers.size_text(seen)})" if seen else ""
            tell(Progress(f"{named}: {what}", whole))

    return told


def _error(what: str, failures: list[Failure]) -> EstimateError:
    """What is raised when no installer succeeded: what the first one said that could look."""
    if all(failure.absent for failure in failures):
        return AbsentError(
            f"The package index has no {what} for Python {platform.python_version()} on Linux "
            f"({platform.machine()}): name another release, or run memcalc under another Python."
        )
    told = next(failure for failure in failures if not failure.absent)
    return EstimateError(f"Cannot fetch {what}: {told.said.rstrip('.')}.")


def _plain(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{installed.normal(requirement.name)}{extras}{requirement.specifier}"


def _missing_in(
    target: Path, wanted: Sequence[Requirement], here: Mapping[str, installed.Package]
) -> list[Requirement]:
    """What is missing with this folder first."""
    own = installed.packages([str(target)])
    needs = [need for package in own.values() for need in package.requirements()]
    return installed.missing((*wanted, *needs), {**here, **own})
