"""Modules in place of packages that need a compiler and are not installed.

Each allocates what its package does, and is used only where a program asks for the package.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import msgspec

from memcalc.children.exit_reason import causes, format_error


class StandIn(msgspec.Struct, frozen=True, kw_only=True):
    """Replacement for a package."""

    package: str
    """The name that it is imported by."""
    distribution: str
    submodules: tuple[str, ...]
    asked: str
    """How an ImportError of those who need it names it; a regular expression."""
    said: str
    """What an answer has to say of it."""


STAND_INS = {
    "flash_attn": StandIn(
        package="flash_attn",
        distribution="flash-attn",
        submodules=("flash_attn_interface", "bert_padding"),
        asked=r"flash_attn|FlashAttention-?2",
        said="flash-attn is not installed: PyTorch's own build of its kernel stands in",
    )
}
"""By the name of the package; each is the file of that name in this folder."""


def is_missing(package: str) -> bool:
    """Return True for a package that has a stand-in and is not installed."""
    return package in STAND_INS and importlib.util.find_spec(package) is None


_installed: dict[str, str] = {}


def list_notes() -> tuple[str, ...]:
    """Return the sentences on the stand-ins installed in this process."""
    return tuple(_installed.values())


def lacking(error: BaseException | None) -> str:
    """Return the missing package with a stand-in that caused an ImportError, or an empty text."""
    for cause in causes(error):
        named = str(cause.name or "") if isinstance(cause, ModuleNotFoundError) else ""
        for package, one in STAND_INS.items():
            told = isinstance(cause, ImportError) and re.search(one.asked, format_error(cause))
            if (named.partition(".")[0] == package or told) and is_missing(package):
                return package
    return ""


def install(package: str) -> str:
    """Install a stand-in, so that the package can be imported and has a version; return a note.

    Returns:
        What an answer has to say of it.
    """
    one = STAND_INS[package]
    content = importlib.import_module(f"{__package__}.{package}")
    whole = _make_module(package, content)
    for name in one.submodules:
        setattr(whole, name, _make_module(f"{package}.{name}", content))
    sys.meta_path.append(_Distributions(one, content.__version__))
    for function in ("is_flash_attn_2_available", "_package_distribution_mapping"):
        _clear_cache("transformers.utils.import_utils", function)
    _installed[package] = one.said
    return one.said


def _make_module(name: str, content: ModuleType) -> ModuleType:
    made = ModuleType(name, content.__doc__)
    vars(made).update({key: value for key, value in vars(content).items() if key[:1] != "_"})
    made.__dict__["__version__"] = content.__dict__["__version__"]
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=content.__file__)
    made.__path__ = []
    sys.modules[name] = made
    return made


def _clear_cache(module: str, function: str) -> None:
    """Clear transformers' cached search for a package."""
    forget = getattr(getattr(sys.modules.get(module), function, None), "cache_clear", None)
    if forget is not None:
        forget()


class _Distribution(importlib.metadata.Distribution):
    """Metadata of a package that is not installed."""

    def __init__(self, one: StandIn, version: str) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {one.distribution}\nVersion: {version}\n",
            "top_level.txt": f"{one.package}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


class _Distributions(importlib.abc.MetaPathFinder):
    """Finds the metadata of a stand-in, and no modules."""

    def __init__(self, one: StandIn, version: str) -> None:
        self._one, self._found = one, _Distribution(one, version)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        own = (self._one.package, self._one.distribution)
        return [self._found] if name is None or name.replace("-", "_").lower() in own else []


_PYTHON_ALONE = "{0}_FORCE_BUILD=TRUE {0}_SKIP_CUDA_BUILD=TRUE pip install --no-deps "
"""A build of one's own is forced: else a wheel is looked for, which may not be reached."""
_INSTALL = {
    "apex": "pip install --no-deps --no-build-isolation git+https://github.com/NVIDIA/apex",
    "causal_conv1d": _PYTHON_ALONE.format("CAUSAL_CONV1D") + "--no-build-isolation causal-conv1d",
    "mamba_ssm": _PYTHON_ALONE.format("MAMBA") + "--no-build-isolation mamba-ssm",
}
"""Commands that install the Python code of a package without a compiler."""
_NONE = ("transformer_engine", "deep_ep", "grouped_gemm")
"""Packages of which memcalc runs nothing unless they are installed whole."""


def how_to_install(packages: Iterable[str]) -> str:
    """Return how to install packages that need a compiler, or an empty text for others."""
    for package in packages:
        if package in _INSTALL:
            return f"type {_INSTALL[package]}: memcalc stands in for its compiled part"
        if package in _NONE:
            return (
                f"memcalc has nothing in place of {package}: install it where its compiler is, or "
                "use PyTorch's own layers"
            )
    return ""
