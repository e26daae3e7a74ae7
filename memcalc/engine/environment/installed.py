"""Packages in a list of folders, read from metadata without importing."""

from __future__ import annotations

import functools
import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_VENDOR = re.compile(r"nvidia-|cuda-|triton$|pytorch-triton$")
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


@functools.cache
def _holding(text: str, extra: str) -> Requirement | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    holds = found.marker is None or found.marker.evaluate({"extra": extra})
    return found if holds else None


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """An installed distribution."""

    name: str
    version: str
    place: str
    """Its dist-info folder."""
    requires: tuple[str, ...] = ()
    """As its metadata spells them, with their markers."""

    def requirements(self, extra: str = "") -> Iterator[Requirement]:
        """Those that hold on this machine; with an extra's, if it is named."""
        found = (_holding(text, extra) for text in self.requires)
        yield from (one for one in found if one is not None)

    def modules(self) -> tuple[str, ...]:
        """Names that it is imported by."""
        record = Path(self.place, "RECORD")
        try:
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return (self.name.replace("-", "_"),)
        names = set()
        for line in lines:
            first, _, rest = line.split(",")[0].partition("/")
            if rest.endswith((".py", ".so")) and first.isidentifier():
                names.add(first)
            elif not rest and first.endswith((".py", ".so")):
                names.add(first.split(".")[0])
        return tuple(sorted(names)) or (self.name.replace("-", "_"),)

    def linked_to_torch(self) -> bool:
        """Whether a compiled part of it needs PyTorch's C++ libraries."""
        from memcalc.engine.environment import linked

        place = Path(self.place)
        try:
            files = (place / "RECORD").read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        return any(
            name.startswith(("libtorch", "libc10"))
            for file in files
            if ".so," in file
            for name in linked.needed(place.parent / file.split(",")[0])
        )


def torch_in(path: Sequence[str]) -> Torch | None:
    """The PyTorch that is imported with these folders as ``sys.path``; ``None``: there is none."""
    spec = importlib.machinery.PathFinder.find_spec("torch", list(path))
    if spec is None and path is sys.path:
        spec = _editable()
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    try:
        text = (root / "version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None

    def value(name: str) -> str:
        found = re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]*)['\"]", text, re.MULTILINE)
        return found[1] if found else ""

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
    """Distributions by their normal names; of two the one that is imported."""
    found: dict[str, Package] = {}
    for folder in path:
        try:
            entries = sorted(Path(folder or ".").glob("*.dist-info"))
        except OSError:
            continue
        for place in entries:
            package = _package(place)
            if package is not None:
                found.setdefault(package.name, package)
    return found


def _package(place: Path) -> Package | None:
    try:
        head = (place / "METADATA").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head = head.partition("\n\n")[0]
    name = re.search(r"^Name: *(\S+)", head, re.MULTILINE)
    version = re.search(r"^Version: *(\S+)", head, re.MULTILINE)
    if name is None or version is None:
        return None
    requires = tuple(re.findall(r"^Requires-Dist: *(.+?)\s*$", head, re.MULTILINE))
    return Package(name=normal(name[1]), version=version[1], place=str(place), requires=requires)


def normal(name: str) -> str:
    """A distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


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


def missing(wanted: Iterable[Requirement], here: Mapping[str, Package]) -> list[Requirement]:
    """What is not installed, or in another version."""
    versions = {name: package.version for name, package in here.items()}
    return [
        found
        for found in wanted
        if normal(found.name) != "torch" and not satisfied(found, versions.get(normal(found.name)))
    ]
