"""Changes to other packages that can be taken back, made when those packages are imported.

What is assumed because of them is kept with them.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Self

_MISSING = object()
Around = Callable[..., Any]
"""Called with the original function, then with what that was called with."""


class Patches:
    """Remembers what it replaced, and puts it back."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, None]] = {}
        self._undo: list[Callable[[], object]] = []
        self._finder = _Finder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def say(self, assumed: str, line: str = "") -> None:
        """Add to what is assumed, because of a line of the user's code."""
        self._said.setdefault(assumed, {})[line] = None

    @property
    def said(self) -> tuple[str, ...]:
        """What is assumed, with its lines."""
        found = ((assumed, ", ".join(filter(None, at))) for assumed, at in self._said.items())
        return tuple(f"{assumed} ({at})" if at else assumed for assumed, at in found)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute, or add it."""
        own = vars(owner) if hasattr(owner, "__dict__") else {}
        before = own.get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))

    def set_everywhere(self, module: ModuleType, name: str, value: Any) -> None:
        """Replace a function of a module, also where modules have imported it by name."""
        original = vars(module)[name]
        for other in list(sys.modules.values()):
            own = getattr(other, "__dict__", {})
            for alias in [key for key, held in list(own.items()) if held is original]:
                self.set(other, alias, value)

    def wrap(self, owner: Any, name: str, around: Around, also: Sequence[ModuleType] = ()) -> None:
        """Replace a function, in other modules too, by ``around(original, *args, **kwargs)``."""
        original = vars(owner).get(name, _MISSING)
        if original is _MISSING:
            original = getattr(owner, name)
        kind = type(original) if isinstance(original, classmethod | staticmethod) else None
        function = original.__func__ if kind is not None else original

        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return around(function, *args, **kwargs)

        self.set(owner, name, inner if kind is None else kind(inner))
        for module in also:
            if hasattr(module, name):
                self.set(module, name, inner)

    def when_imported(self, name: str, act: Callable[[ModuleType], None]) -> None:
        """Act on a module once it has been imported, or now if it has been."""
        if name in sys.modules:
            act(sys.modules[name])
            return
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)
        self._finder.waiting.setdefault(name, []).append(act)

    def wrap_later(self, module: str, place: str, around: Around) -> None:
        """Wrap a function such as ``Class.name`` of a module once that has been imported.

        Other releases of a package may have no such class or function, and are left as they are.
        """
        owner, _, name = place.rpartition(".")

        def put(imported: Any) -> None:
            found = getattr(imported, owner, None) if owner else imported
            if hasattr(found, name):
                self.wrap(found, name, around)

        self.when_imported(module, put)

    def environment(self, name: str, value: str) -> None:
        """Set a variable of the environment."""
        before = os.environ.get(name)

        def undo() -> None:
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before

        os.environ[name] = value
        self._undo.append(undo)

    def also(self, undo: Callable[[], object]) -> None:
        """Call this too when everything is put back."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put back everything, the last first."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        while self._undo:
            self._undo.pop()()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as everybody does, and acts after some of them have run."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    # It may only be asked whether the module is there: nothing is loaded then.
                    spec.loader = _Loader(spec.loader, functools.partial(self._act, name))
                return spec  # type: ignore[no-any-return]
        return None

    def _act(self, name: str, module: ModuleType) -> None:
        for act in self.waiting.pop(name, []):
            act(module)


class _Loader(importlib.abc.Loader):
    """Loads a module by its own loader, then acts on it."""

    def __init__(self, loader: Any, act: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act(module)
