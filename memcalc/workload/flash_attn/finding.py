"""Lets programs find flash-attn where it is not installed, and transformers believe in it.

transformers 5.23 asks for a module, for the distribution that it is of, and for CUDA
(``utils/import_utils.py``, ``modeling_flash_attention_utils.py``), and remembers the answers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from memcalc.records.plan import FLASH_ATTN, Plan

VERSION = "2.8.3"
"""Of the package that was read."""
PACKAGE = "flash_attn"
_DISTRIBUTION, _EXTENSION = "flash-attn", "flash_attn_2_cuda"
_STAND_INS = {
    PACKAGE: "interface",
    f"{PACKAGE}.flash_attn_interface": "interface",
    f"{PACKAGE}.bert_padding": "padding",
}
_TEXTS = {
    "METADATA": f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {VERSION}\n",
    "top_level.txt": f"{PACKAGE}\n",
}
_REMEMBERED = ("is_flash_attn_2_available", "_package_distribution_mapping")


def can_run() -> bool:
    """The package is installed with its compiled extension."""
    return all(importlib.util.find_spec(name) is not None for name in (PACKAGE, _EXTENSION))


class _Loader(importlib.abc.Loader):
    """Makes a module of the functions that stand for another's."""

    def exec_module(self, module: ModuleType) -> None:
        stands = _STAND_INS[module.__name__]
        own = importlib.import_module(f"memcalc.workload.flash_attn.{stands}")
        public = {name: value for name, value in vars(own).items() if not name.startswith("_")}
        vars(module).update(public, __version__=VERSION)


class _Distribution(importlib.metadata.Distribution):
    """What is known of the package that is stood for."""

    def read_text(self, filename: str) -> str | None:
        return _TEXTS.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return Path(path)


class _Finder(importlib.metadata.DistributionFinder):
    """Finds what stands for the package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=fullname == PACKAGE)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        wanted = context.name if context is not None else None
        if wanted is None or wanted.replace("_", "-").lower() == _DISTRIBUTION:
            yield _Distribution()


@contextlib.contextmanager
def provide() -> Iterator[None]:
    """Whoever imports ``flash_attn`` finds what stands for it, installed or not."""
    finder, theirs = _Finder(), _taken_out()
    sys.meta_path.insert(0, finder)
    _forget()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _taken_out()
        sys.modules.update(theirs)
        _forget()


def stood_for(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """A plan that names it finds it, while the context lasts."""
    return _present() if plan.attention == FLASH_ATTN else contextlib.nullcontext()


@contextlib.contextmanager
def _present() -> Iterator[None]:
    """Transformers takes it to be there too, and a GPU that runs it."""
    utils: Any = importlib.import_module("transformers.utils.import_utils")
    asked = utils.is_torch_cuda_available
    utils.is_torch_cuda_available = lambda: True
    try:
        with provide():
            yield
    finally:
        utils.is_torch_cuda_available = asked
        _forget()


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    return {name: sys.modules.pop(name) for name in names}


def _forget() -> None:
    """What transformers found of it is asked anew."""
    utils = sys.modules.get("transformers.utils.import_utils")
    for name in _REMEMBERED if utils is not None else ():
        clear = getattr(getattr(utils, name, None), "cache_clear", None)
        if clear is not None:
            clear()
    loaded = sys.modules.get("transformers.modeling_flash_attention_utils")
    if loaded is not None:
        loaded._loaded_implementation = None  # type: ignore[attr-defined]
