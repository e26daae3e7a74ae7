"""PyTorch and other packages in a list of folders, none of which is imported, and their releases.

A question names a release as ``2.6``, ``2.10.0`` or ``2.12.1+cu126``.
"""

from __future__ import annotations

import functools
import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memcalc.errors import SettingError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement

_TRITON = re.compile(r"(pytorch-)?triton$")
_VENDOR = re.compile(rf"nvidia-|cuda-|{_TRITON.pattern}")
"""Dependencies of PyTorch that a program needs on a GPU, or to compile kernels."""


class Torch(msgspec.Struct, frozen=True):
    """A PyTorch in a folder."""

    root: str
    version: str
    """With its local part: ``2.13.0+cpu``."""
    cuda: str
    """CUDA it was built for; empty: none."""

    @property
    def release(self) -> str:
        """The version without its local part."""
        return self.version.split("+")[0]


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """An installed distribution."""

    name: str
    """As PyPI compares it."""
    version: str
    requires: tuple[str, ...]
    """As its metadata spells them, with their markers."""
    distribution: Distribution

    def requirements(self, extra: str = "") -> Iterator[Requirement]:
        """Those that hold on this machine; with an extra's, if it is named."""
        found = (_holding(text, extra) for text in self.requires)
        yield from (one for one in found if one is not None)

    def modules(self) -> tuple[str, ...]:
        """Names that it is imported by."""
        files = self.distribution.files or ()
        names = {file.parts[0].split(".")[0] for file in files if file.suffix in (".py", ".so")}
        named = sorted(name for name in names if name.isidentifier())
        return tuple(named) or (self.name.replace("-", "_"),)

    def linked_to_torch(self) -> bool:
        """Whether a compiled part of it needs PyTorch's C++ libraries."""
        from memcalc.engine.stub import elf

        return any(
            name.startswith(("libtorch", "libc10"))
            for file in self.distribution.files or ()
            if file.suffix == ".so"
            for name in elf.needed(Path(str(file.locate())))
        )


@functools.cache
def _holding(text: str, extra: str) -> Requirement | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    return found if found.marker is None or found.marker.evaluate({"extra": extra}) else None


def torch_in(path: Sequence[str]) -> Torch | None:
    """The PyTorch that is imported with these folders as ``sys.path``; ``None``: there is none."""
    spec = importlib.machinery.PathFinder.find_spec("torch", list(path))
    if spec is None and path is sys.path:
        spec = _editable()
    return torch_at(spec.origin) if spec is not None and spec.origin is not None else None


def torch_at(origin: str) -> Torch | None:
    """The PyTorch whose ``__init__.py`` this is; ``None``: it does not say its version."""
    root = Path(origin).parent
    try:
        text = (root / "version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None

    def value(name: str) -> str:
        found = re.findall(rf"^{name}\b[^=\n]*= *['\"]([^'\"]*)['\"]", text, re.MULTILINE)
        return found[-1] if found else ""

    version = value("__version__")
    return Torch(str(root), version, value("cuda")) if version else None


def _editable() -> importlib.machinery.ModuleSpec | None:
    """PyTorch as a finder of an editable installation names it."""
    for finder in sys.meta_path:
        if finder is importlib.machinery.PathFinder or not hasattr(finder, "find_spec"):
            continue
        if (spec := finder.find_spec("torch", None)) is not None:
            return spec
    return None


def packages(path: Iterable[str]) -> dict[str, Package]:
    """Distributions by the names that PyPI compares; of two the one that is imported."""
    from importlib.metadata import distributions

    found: dict[str, Package] = {}
    for one in distributions(path=list(path)):
        if not one.read_text("METADATA"):
            continue
        head = one.metadata
        name, version = normal(head["Name"] or ""), head["Version"]
        if name and version and name not in found:
            requires = tuple(head.get_all("Requires-Dist") or ())
            found[name] = Package(name=name, version=version, requires=requires, distribution=one)
    return found


def normal(name: str) -> str:
    """A distribution's name as PyPI compares it."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def satisfied(requirement: Requirement, version: str | None) -> bool:
    """Whether a version is what a package asks for; ``None``: it is not installed."""
    from packaging.version import InvalidVersion, Version

    if version is None:
        return False
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def is_vendor(requirement: Requirement) -> bool:
    """Whether the engine does without it: NVIDIA's libraries and Triton."""
    return _VENDOR.match(normal(requirement.name)) is not None


def is_triton(requirement: Requirement) -> bool:
    """Return True for the compiler of PyTorch's kernels."""
    return _TRITON.match(normal(requirement.name)) is not None


def missing(wanted: Iterable[Requirement], here: Mapping[str, Package]) -> list[Requirement]:
    """What is not installed, or in another version."""
    versions = {name: package.version for name, package in here.items()}
    return [
        found
        for found in wanted
        if normal(found.name) != "torch" and not satisfied(found, versions.get(normal(found.name)))
    ]


OLDEST_TORCH = (2, 2)
"""Releases before it were not held against the stub driver."""
_FORM = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:\+(\w+))?")
_BUILD = re.compile(r"cu\d{2,4}")


class Release(msgspec.Struct, frozen=True):
    """A release, or the newest patch of one."""

    major: int
    minor: int
    patch: int | None = None
    """``None``: the newest."""
    build: str | None = None
    """``cu126``; ``None``: the one that the index has."""

    def __str__(self) -> str:
        patch = "" if self.patch is None else f".{self.patch}"
        return f"{self.major}.{self.minor}{patch}" + (f"+{self.build}" if self.build else "")

    def matches(self, version: str, cuda: str = "") -> bool:
        """Whether an installed version, whose local part says nothing, is of this release.

        ``cuda``: what PyTorch was built for, such as ``12.6``.
        """
        numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?$", version.split("+")[0])
        if numbers is None or (int(numbers[1]), int(numbers[2])) != (self.major, self.minor):
            return False
        if self.patch is not None and int(numbers[3] or 0) != self.patch:
            return False
        return self.build is None or self.build == f"cu{cuda.replace('.', '')}"

    def requirement(self, package: str) -> str:
        """What an installer is asked for.

        ``===`` keeps ``2.13.0+cpu`` from standing in for ``2.13.0``.
        """
        return f"{package}==={self}" if self.patch is not None else f"{package}=={self}.*"


def of_version(version: str) -> Release | None:
    """The release of an installed version; ``None``: a nightly or own build, which no index has."""
    match = _FORM.fullmatch(version.split("+")[0])
    if match is None or match[3] is None:
        return None
    return Release(int(match[1]), int(match[2]), int(match[3]))


def parse_torch(text: str) -> Release:
    """The release of PyTorch that a question names.

    Raises:
        SettingError: it is not understood, or is too old.
    """
    found = parse(text, "torch", "PyTorch", "2.6 or 2.10.0")
    if found.build is not None and not _BUILD.fullmatch(found.build):
        wrong = f"exact estimates run PyTorch's CUDA build; leave +{found.build} out."
    elif (found.major, found.minor) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        wrong = f"memcalc runs PyTorch {oldest} and newer; name one of them."
    elif found.build is not None and found.patch is None:
        whole = f"{found.major}.{found.minor}.0+{found.build}"
        wrong = f"a build for one CUDA needs the whole release, as in {whole}."
    else:
        return found
    raise SettingError("torch", f"--torch {text}: {wrong}")


def parse_transformers(text: str) -> Release:
    """The release of transformers that a question names.

    Raises:
        SettingError: it is not understood.
    """
    found = parse(text, "transformers", "transformers", "4.48 or 4.48.3")
    if found.build is not None:
        raise SettingError("transformers", f"--transformers {text}: leave +{found.build} out.")
    return found


def parse(text: str, setting: str, package: str, example: str) -> Release:
    """Read the release of a package that a question names.

    Raises:
        SettingError: it is not understood.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise SettingError(
            setting, f"--{setting} {text[:80]!r} is no release of {package}: write {example}."
        )
    patch = None if match[3] is None else int(match[3])
    return Release(int(match[1]), int(match[2]), patch, match[4])
