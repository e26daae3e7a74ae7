"""Releases of PyTorch and other packages, as a question names them: ``2.6``, ``2.12.1+cu126``."""

import re

import msgspec

from memcalc.errors import SettingError

OLDEST_TORCH = (2, 2)
"""Releases before it were not held against the stub driver."""
_FORM = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:\+(\w+))?")
_PACKAGES = {
    "torch": ("PyTorch", "2.6 or 2.10.0"),
    "transformers": ("transformers", "4.48 or 4.48.3"),
    "vllm": ("vLLM", "0.33 or 0.33.0"),
}
"""How packages are called, and examples of their releases."""
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
        """Return True for an installed version of this release; its local part says nothing.

        ``cuda``: what PyTorch was built for, such as ``12.6``.
        """
        from packaging.specifiers import SpecifierSet

        wanted = f"=={self.major}.{self.minor}.{'*' if self.patch is None else self.patch}"
        built = self.build in (None, f"cu{cuda.replace('.', '')}")
        return built and SpecifierSet(wanted).contains(version.split("+")[0])

    def requirement(self, package: str) -> str:
        """Return the requirement that pip or uv gets, such as ``torch===2.6.0``.

        ``===`` keeps ``2.13.0+cpu`` from standing in for ``2.13.0``.
        """
        return f"{package}==={self}" if self.patch is not None else f"{package}=={self}.*"


def of_version(version: str) -> Release | None:
    """Return the release of an installed version, or None for a nightly or own build."""
    match = _FORM.fullmatch(version.split("+")[0])
    if match is None or match[3] is None:
        return None
    return Release(int(match[1]), int(match[2]), int(match[3]))


def parse_torch(text: str) -> Release:
    """Parse the PyTorch release that a user names, such as ``2.6`` or ``2.12.1+cu126``.

    Raises:
        SettingError: it is not understood, or is too old.
    """
    found = _parse("torch", text)
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


def parse(setting: str, text: str) -> Release:
    """Parse the release of a package without CUDA builds, such as transformers or vLLM.

    Raises:
        SettingError: it is not understood.
    """
    found = _parse(setting, text)
    if found.build is not None:
        raise SettingError(setting, f"--{setting} {text}: leave +{found.build} out.")
    return found


def _parse(setting: str, text: str) -> Release:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        package, example = _PACKAGES[setting]
        raise SettingError(
            setting, f"--{setting} {text[:80]!r} is no release of {package}: write {example}."
        )
    patch = None if match[3] is None else int(match[3])
    return Release(int(match[1]), int(match[2]), patch, match[4])
