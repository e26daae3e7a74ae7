"""Forgets the numbers that packages' compiled code writes: custom operators, functions in C++.

Its kernels do nothing here, and what they would write is not known. The tensors that PyTorch makes
for them, often filled with zeros, are not followed while such code runs.
"""

import functools
import re
from collections.abc import Callable, Iterable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from memcalc.engine.host_view import tensors_in
from memcalc.engine.patches import Patches
from memcalc.engine.stub import elf
from memcalc.engine.values import threads
from memcalc.engine.values.rules import Followed

_C: Any = torch._C
_ops: Any = torch._ops
_KERNEL_IN_CPP = re.compile(r"^CUDA: registered at (?!.*\.py:\d)", re.MULTILINE)
"""Matches PyTorch's description of an operator that has a kernel for CUDA, not in Python."""
_TORCH = re.compile(r"lib(?:torch|c10)\b")
"""Matches the libraries of PyTorch that an extension is linked to."""


@functools.cache
def own_namespaces() -> frozenset[str]:
    """Return the namespaces of PyTorch's operators, asked before packages add theirs."""
    return frozenset(name.partition("::")[0] for name in _C._dispatch_get_all_op_names())


class Extensions:
    """Follows the operators and functions of packages' compiled code."""

    def __init__(self, forget: Callable[..., None]) -> None:
        self._forget = forget
        """Marks tensors as unknown; ``integers``: those of whole numbers too."""
        self._libraries: list[Any] = []

    def install(self, patches: Patches) -> None:
        """Follow each operator when it is first looked up, and each module as it is loaded."""
        own_namespaces()
        patches.wrap(_ops._OpNamespace, "__getattr__", self._find_operator)
        patches.wrap(ExtensionFileLoader, "exec_module", self._load_module)
        patches.also(self._libraries.clear)

    def _find_operator(self, original: Any, namespace: Any, name: str) -> Any:
        """Return an operator of a namespace, followed if its kernel is a package's."""
        found = original(namespace, name)
        if namespace.name not in own_namespaces() and isinstance(found, _ops.OpOverloadPacket):
            for overload in found.overloads():
                self._follow_operator(getattr(found, overload))
        return found

    def _follow_operator(self, op: Any) -> None:
        namespace, _, name = op.name().partition("::")
        if _KERNEL_IN_CPP.search(_C._dispatch_dump(op.name())):
            library = torch.library.Library(namespace, "IMPL")
            library.impl(
                name, self._wrap(op, Followed.from_schema(op, name).written), threads.VALUES
            )
            self._libraries.append(library)

    def _load_module(self, original: Any, loader: Any, module: ModuleType) -> None:
        """Load a compiled module; follow its functions if it is linked to PyTorch."""
        original(loader, module)
        if any(map(_TORCH.match, elf.read_dependencies(Path(loader.path)))):
            for name, function in list(vars(module).items()):
                if isinstance(function, BuiltinFunctionType):
                    setattr(module, name, functools.wraps(function)(self._wrap(function)))

    def _wrap(
        self,
        function: Any,
        find_written: Callable[[Any, Any], Iterable[torch.Tensor]] | None = None,
    ) -> Callable[..., Any]:
        """Return a function that calls another, and forgets its results and what it wrote.

        ``find_written``: returns the arguments that it writes to; without, any floats may be.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            with _C._ExcludeDispatchKeyGuard(threads.keys()):
                out = function(*args, **kwargs)
                if find_written is None:
                    self._forget(tensors_in((args, kwargs)))
                else:
                    self._forget(find_written(args, kwargs), integers=True)
                self._forget(tensors_in((out,)), integers=True)
                return out

        return call
