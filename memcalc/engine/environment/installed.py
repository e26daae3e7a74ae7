"""PyTorch and other packages in a list of folders, none of which is imported."""

from __future__ import annotations

import functools
import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from packaging.specifiers import SpecifierSet


class Torch(msgspec.Struct, frozen=True):
    """A PyTorch in a folder."""

    root: str
    """Its package folder."""
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

    def requirements(self, extra: str = "") -> Iterator[tuple[str, SpecifierSet]]:
        """Yield names and versions of what it requires on this machine, also for an extra."""
        yield from filter(None, (_parse_requirement(text, extra) for text in self.requires))

    def modules(self) -> tuple[str, ...]:
        """Return the names of the modules that the package installs."""
        files = self.distribution.files or ()
        names = {file.parts[0].split(".")[0] for file in files if file.suffix in (".py", ".so")}
        named = sorted(name for name in names if name.isidentifier())
        return tuple(named) or (self.name.replace("-", "_"),)

    def is_linked_to_torch(self) -> bool:
        """Return True if its compiled code is linked to PyTorch's libraries."""
        from memcalc.engine.stub import elf

        return any(
            name.startswith(("libtorch", "libc10"))
            for file in self.distribution.files or ()
            if file.suffix == ".so"
            for name in elf.read_dependencies(Path(str(file.locate())))
        )


@functools.cache
def _parse_requirement(text: str, extra: str) -> tuple[str, SpecifierSet] | None:
    """Parse a requirement; return None if it is invalid or its marker excludes this machine."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    if found.marker is not None and not found.marker.evaluate({"extra": extra}):
        return None
    return canonicalize_name(found.name), found.specifier


def torch_in(path: Sequence[str]) -> Torch | None:
    """Find the PyTorch that these folders as ``sys.path`` import, without importing it; or None."""
    # An editable PyTorch has a finder of its own.
    here = path is sys.path
    finders: Sequence[Any] = sys.meta_path if here else [importlib.machinery.PathFinder]
    specs = (
        one.find_spec("torch", None if here else list(path))
        for one in finders
        if hasattr(one, "find_spec")
    )
    spec = next(filter(None, specs), None)
    return torch_at(spec.origin) if spec is not None and spec.origin is not None else None


def torch_at(origin: str) -> Torch | None:
    """Read version and CUDA of the PyTorch with this ``__init__.py``; None without a version."""
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


def packages(path: Iterable[str]) -> dict[str, Package]:
    """Return the distributions in folders by normalized name; of two the one imported."""
    from importlib.metadata import distributions

    from packaging.utils import canonicalize_name

    found: dict[str, Package] = {}
    for one in distributions(path=list(path)):
        if not one.read_text("METADATA"):
            continue
        head = one.metadata
        name, version = canonicalize_name(head["Name"] or ""), head["Version"]
        if name and version and name not in found:
            requires = tuple(head.get_all("Requires-Dist") or ())
            found[name] = Package(name=name, version=version, requires=requires, distribution=one)
    return found


def accepts_version(specifier: SpecifierSet, version: str) -> bool:
    """Return True if a specifier allows a version, or the version is none that can be compared."""
    from packaging.version import InvalidVersion, Version

    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True
