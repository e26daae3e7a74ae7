"""The release of a package that a question names: ``2.6``, ``2.10.0``, ``2.12.1+cu126``."""

from __future__ import annotations

import re

import msgspec

from memcalc.errors import SettingError

OLDEST_TORCH = (2, 4)
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
        """Whether an installed version is of this release.

        Args:
            version: as the package spells it; a local part says nothing.
            cuda: what PyTorch was built for, such as ``12.6``.
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
    found = _parse(text, "torch", "PyTorch", "2.6 or 2.10.0")
    if found.build is not None and not _BUILD.fullmatch(found.build):
        raise SettingError(
            "torch",
            f"--torch {text}: exact estimates run PyTorch's CUDA build; leave +{found.build} out.",
        )
    if (found.major, found.minor) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise SettingError(
            "torch", f"--torch {text}: memcalc runs PyTorch {oldest} and newer; name one of them."
        )
    if found.build is not None and found.patch is None:
        raise SettingError(
            "torch",
            f"--torch {text}: a build for one CUDA needs the whole release, as in "
            f"{found.major}.{found.minor}.0+{found.build}.",
        )
    return found


def parse_transformers(text: str) -> Release:
    """The release of transformers that a question names.

    Raises:
        SettingError: it is not understood.
    """
    found = _parse(text, "transformers", "transformers", "4.48 or 4.48.3")
    if found.build is not None:
        raise SettingError("transformers", f"--transformers {text}: leave +{found.build} out.")
    return found


def _parse(text: str, setting: str, package: str, example: str) -> Release:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise SettingError(
            setting, f"--{setting} {text[:80]!r} is no release of {package}: write {example}."
        )
    patch = None if match[3] is None else int(match[3])
    return Release(int(match[1]), int(match[2]), patch, match[4])
