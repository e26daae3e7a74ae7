"""Decides where the engine's PyTorch comes from, and which installed packages go with it."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from memcalc import shadowing
from memcalc.engine.environment import folders, installed
from memcalc.engine.environment.installed import Package, Torch
from memcalc.engine.environment.releases import Release, of_version, parse, parse_torch
from memcalc.engine.environment.uv import NVIDIA, UnsolvableError, Uv, find_site
from memcalc.errors import EstimateError
from memcalc.records.progress import Progress, tell

ELSEWHERE = (
    "Exact estimates run PyTorch's CUDA build, which memcalc runs on Linux: use WSL or a Linux "
    "container (docker build -t memcalc . in a checkout, then docker run --rm memcalc estimate "
    "...), or add --method analytic."
)
"""What is said on Windows and macOS."""
SIZE = "0.8 to 1.1 GB to fetch, 1.8 to 2.6 GB on disk"
"""Of PyTorch's CUDA build with what it needs; 2.2 and 2.6 were fetched."""
_ROOM = 4e9
"""Bytes of disk while PyTorch is installed: what is fetched and what is unpacked are one file."""
_ROOM_OF_TRANSFORMERS = 4e8
_OWN = "torch-memcalc"
_OWN_INDEX = "https://download.pytorch.org/whl/"
"""PyTorch's own index of builds for other versions of CUDA."""
_NOT_OF_TORCH = ("torch", "torchvision", "torchaudio", "triton", *NVIDIA)
"""What an environment leaves out that runs the installed PyTorch."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Which PyTorch the engine's process imports, and what must be set for that."""

    torch: Torch
    path: tuple[str, ...] = ()
    """Folders that come first on ``PYTHONPATH``."""
    hidden: tuple[str, ...] = ()
    """Modules of installed packages that do not go with this PyTorch or transformers."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables with ``path`` first on ``PYTHONPATH``."""
        if not self.path:
            return dict(environ)
        before = environ.get("PYTHONPATH")
        entries = (*self.path, *((before,) if before else ()))
        return {**environ, "PYTHONPATH": os.pathsep.join(entries)}


def find(torch: str | None = None, transformers: str | None = None) -> Environment:
    """Return the environment of the engine's process; a missing one is made and kept.

    Args name the releases that a question asks for; None is the installed one. Downloads are
    reported as progress.

    Raises:
        SettingError: a release is not understood, or is too old.
        EstimateError: there is no CUDA build for this machine, or it cannot be fetched.
    """
    of_torch = None if torch is None else parse_torch(torch)
    of_transformers = None if transformers is None else parse("transformers", transformers)
    if sys.platform != "linux":
        raise EstimateError(ELSEWHERE)
    here = installed.torch_in(sys.path)
    usable = here if here is not None and here.cuda else None
    if usable and of_torch and not of_torch.matches(usable.version, usable.cuda):
        usable = None
    if usable and of_transformers is None:
        # The usual case: nothing is to be looked at but PyTorch's version.
        return Environment(torch=usable)
    below = installed.packages(sys.path)
    if of_transformers and (own := below.get("transformers")):
        of_transformers = None if of_transformers.matches(own.version) else of_transformers
    if usable:
        of_torch = None
    elif of_torch is None or (here and not of_torch.build and of_torch.matches(here.version)):
        of_torch = _require_release(here)
    return _make_environment(here, of_torch, of_transformers, below)


def _require_release(here: Torch | None) -> Release:
    """Return the release of an installed build without CUDA.

    Raises:
        EstimateError: PyTorch is not installed, or is no release.
    """
    if here is None:
        missing = "PyTorch is not installed: type pip install torch, or name a release."
        raise EstimateError(shadowing.describe_hiding("torch") or missing)
    if (found := of_version(here.version)) is None:
        raise EstimateError(
            f"PyTorch {here.version} is a build without CUDA, and no index has that version "
            "for CUDA: name a release, as in --torch 2.14."
        )
    return found


def _make_environment(
    here: Torch | None,
    torch: Release | None,
    transformers: Release | None,
    below: Mapping[str, Package],
) -> Environment:
    """Return an environment with these releases; None: the running Python's own."""
    wanted = {"torch": torch, "transformers": transformers}
    named = {name: release for name, release in wanted.items() if release is not None}
    sites = []
    if named:
        title = " and ".join(
            f"{name.replace('torch', 'PyTorch')} {release}" for name, release in named.items()
        )
        folder = folders.make(
            "-".join(f"{name}-{release}" for name, release in named.items()),
            f"{title}'s CUDA build" if torch else title,
            _ROOM if torch else _ROOM_OF_TRANSFORMERS,
            lambda uv: _install(uv, title, named, below),
        )
        sites = [str(find_site(folder))]
    runs = installed.torch_in(sites) if torch else here
    if runs is None:
        raise EstimateError(f"{folders.parent()} is damaged: delete that folder.")
    brought = installed.packages(sites)
    other = here is None or here.release.split(".")[:2] != runs.release.split(".")[:2]
    versions = {name: one.version for name, one in brought.items()} | {"torch": runs.version}
    return Environment(
        torch=runs,
        path=tuple(sites),
        hidden=_list_hidden(below, versions, other_torch=other),
    )


def _install(
    uv: Uv, title: str, named: Mapping[str, Release], below: Mapping[str, Package]
) -> None:
    """Install the named releases and their requirements."""
    torch = named.get("torch")
    tell(Progress(f"{title} with CUDA: {SIZE}, once" if torch else f"fetching {title}, once"))
    if torch and torch.build:
        uv.add_index(_OWN_INDEX + torch.build)
    try:
        pins = _resolve(uv, named, below)
    except UnsolvableError:
        raise EstimateError(
            f"The package index has no {title} for Python {platform.python_version()} on Linux "
            f"({platform.machine()}): name another release, or run memcalc under another Python."
        ) from None
    uv.install(pins, title)
    if torch:
        _require_cuda(find_site(uv.folder))


def _resolve(uv: Uv, named: Mapping[str, Release], below: Mapping[str, Package]) -> dict[str, str]:
    """Return versions by package: the named releases, and requirements that fit them.

    A package that refuses what is named, such as torchvision, is asked for in a release that
    takes it; without one it is hidden.
    """
    preferred = {name: one.version for name, one in below.items() if name not in _NOT_OF_TORCH}
    excluded = NVIDIA if "torch" in named else _NOT_OF_TORCH

    def resolve(requirements: list[str]) -> dict[str, str]:
        return uv.resolve(requirements, preferred=preferred, excluded=excluded)

    wanted = [release.requirement(name) for name, release in named.items()]
    if "torch" in named and (named["torch"].major, named["torch"].minor) == (2, 2):
        wanted.append("numpy<2")  # It was compiled against NumPy 1.
    pins = resolve(wanted)
    tried = {_OWN, "triton", *NVIDIA}
    while refusing := {name for name in _conflicts(below, pins) if name not in {*tried, *pins}}:
        for name in sorted(refusing):
            tried.add(name)
            # The extra brings what a package asks of PyTorch; a package without it ignores that.
            with contextlib.suppress(UnsolvableError):
                pins = resolve([*wanted, f"{name}[torch]"])
                wanted.append(f"{name}[torch]")
    return pins


def _require_cuda(site: Path) -> None:
    found = installed.torch_in([str(site)])
    if found is None:
        raise EstimateError("The installer left no PyTorch behind.")
    if not found.cuda or not (Path(found.root) / "lib" / "libtorch_cuda.so").is_file():
        raise EstimateError(
            f"The PyTorch for {os.uname().machine} that was installed is {found.version}, a build "
            "without CUDA: name a newer release, as in --torch 2.14."
        )


def _conflicts(below: Mapping[str, Package], brought: Mapping[str, str]) -> set[str]:
    """Return installed packages that require other versions than an environment has.

    A build without CUDA counts as one: it has no operators for tensors there.
    """
    return {
        name
        for name, package in below.items()
        if ("torch" in brought and package.version.endswith("+cpu"))
        or any(
            required in brought and not installed.accepts_version(specifier, brought[required])
            for required, specifier in package.requirements("torch")
        )
    }


def _list_hidden(
    below: Mapping[str, Package], brought: Mapping[str, str], *, other_torch: bool
) -> tuple[str, ...]:
    """Return modules of installed packages that do not work with an environment's versions.

    Packages that need one of them, and those that need these, go with them.
    """
    rest = {name: one for name, one in below.items() if name not in {*brought, _OWN}}
    found = _conflicts(rest, brought)
    found |= {name for name, one in rest.items() if other_torch and _is_built_for_one(one)}
    more = found
    while more:
        more = {
            name
            for name, package in rest.items()
            if name not in found and any(one in found for one, _ in package.requirements())
        }
        found |= more
    return tuple(sorted({module for name in found for module in rest[name].modules()}))


def _is_built_for_one(package: Package) -> bool:
    """Return True if a package is linked to PyTorch, but requires no version of it."""
    of_torch = [specifier for name, specifier in package.requirements() if name == "torch"]
    return not any(of_torch) and package.is_linked_to_torch()


def hide(environment: Environment) -> None:
    """Hide packages from imports; called in the engine's process, before the program.

    ``importlib.util.find_spec`` then fails, which transformers, peft and accelerate call before
    they use one.
    """
    for module in environment.hidden:
        sys.modules[module] = None  # type: ignore[assignment]
