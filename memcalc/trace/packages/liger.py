"""Liger: its own host code runs on the simulated device, and its kernels do nothing.

Liger asks of a device whether it is called ``cuda``, and ``torch.cuda`` what it can do: so its
files are read with the name that the device has here. It also puts its functions into
transformers' modules, where the next program would find them, so these are put back. Read in 0.8.5.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from memcalc.kernels.target import Target
from memcalc.trace import device
from memcalc.trace.packages import triton
from memcalc.trace.properties import Properties

PACKAGE = "liger_kernel"
_CUDA = "cuda"
_ours: dict[Target, dict[str, ModuleType]] = {}
"""Its modules, as they were read for a target: they remember what they found of it."""


@contextlib.contextmanager
def simulated(target: Target, assume: Callable[[str], None]) -> Iterator[None]:
    """Whoever imports Liger finds it fit for the simulated device, while the context lasts.

    Args:
        target: the GPU, which it chooses some sizes by.
        assume: is told what is assumed by it.
    """
    finder = _Finder()
    with _described(target), triton.inert(assume), _put_back():
        theirs, ours = _taken_out(), _ours.get(target, {})
        triton.forget(ours.values())
        sys.modules.update(ours)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _ours.clear()
            _ours[target] = _taken_out()
            sys.modules.update(theirs)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    return {name: sys.modules.pop(name) for name in names}


@contextlib.contextmanager
def _described(target: Target) -> Iterator[None]:
    """``torch.<device>`` answers for the GPU as ``torch.cuda`` would."""
    module: Any = getattr(torch, device.NAME)
    found = Properties("", target.capability, None, target.multiprocessors, target.architecture)
    answers: dict[str, Callable[..., Any]] = {
        "get_device_properties": lambda index=None: found,
        "get_device_capability": lambda index=None: target.capability,
    }
    vars(module).update(answers)
    try:
        yield
    finally:
        for name in answers:
            del vars(module)[name]


class _Renamed(ast.NodeTransformer):
    """Code that means CUDA, in the name that the device has here."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(device.NAME), node) if node.value == _CUDA else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == _CUDA and isinstance(node.value, ast.Name) and node.value.id == "torch":
            node.attr = device.NAME
        if node.attr != "is_cuda":
            return node
        asked = ast.parse(f"_.device.type == {device.NAME!r}", mode="eval").body
        for part in ast.walk(asked):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                part.value = node.value
            ast.copy_location(part, node)
        return asked


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads a file under other names; what Python keeps of the file itself is left alone."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        if _CUDA.encode() not in source:
            return super().get_code(fullname)
        return compile(_Renamed().visit(ast.parse(source, path)), path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Liger's modules where they are."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


@contextlib.contextmanager
def _put_back() -> Iterator[None]:
    """What it replaces in transformers and PyTorch is as it was afterwards."""
    found = [(owner, dict(vars(owner))) for owner in _owners()]
    try:
        yield
    finally:
        for owner, before in found:
            for name, value in list(vars(owner).items()):
                if name not in before:
                    delattr(owner, name)
                elif value is not before[name]:
                    setattr(owner, name, before[name])


def _owners() -> Iterator[Any]:
    """Modules of models, the classes in them, and where losses are looked up."""
    yield torch.nn.functional
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and ".modeling_" in name:
            yield module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield value
