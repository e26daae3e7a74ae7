"""Patches other packages, now or when they are imported, and undoes the patches.

The assumptions of an answer that follow from patches are kept with them.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Self

_MISSING = object()
Around = Callable[..., Any]
"""A wrapper: called with the original function, then with the arguments of the call."""


class Patches:
    """A set of patches, which remembers the originals and restores them."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, None]] = {}
        self._undo: list[Callable[[], object]] = []
        self._finder = _Finder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def say(self, assumed: str, line: str = "") -> None:
        """Add an assumption, with the user's line that is the reason for it."""
        self._said.setdefault(assumed, {})[line] = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions so far, with the user's lines."""
        found = ((assumed, ", ".join(filter(None, at))) for assumed, at in self._said.items())
        return tuple(f"{assumed} ({at})" if at else assumed for assumed, at in found)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace or add an attribute."""
        own = vars(owner) if hasattr(owner, "__dict__") else {}
        before = own.get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))

    def set_everywhere(self, module: ModuleType, name: str, value: Any) -> None:
        """Replace a function of a module, also in all modules that imported it by name."""
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
        """Call ``act`` with a module after its import, or now if it is imported."""
        if name in sys.modules:
            act(sys.modules[name])
            return
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)
        self._finder.waiting.setdefault(name, []).append(act)

    def wrap_later(self, module: str, place: str, around: Around) -> None:
        """Wrap a function such as ``Class.name`` of a module after the module's import.

        Releases of a package that have no such class or function are not changed.
        """
        owner, _, name = place.rpartition(".")

        def wrap_member(imported: Any) -> None:
            found = getattr(imported, owner, None) if owner else imported
            if hasattr(found, name):
                self.wrap(found, name, around)

        self.when_imported(module, wrap_member)

    def environment(self, name: str, value: str) -> None:
        """Set an environment variable."""
        before = os.environ.get(name)

        def undo() -> None:
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before

        os.environ[name] = value
        self._undo.append(undo)

    def also(self, undo: Callable[[], object]) -> None:
        """Add a function to be called by ``undo``."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Undo all patches, the last one first."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        while self._undo:
            self._undo.pop()()


class _Finder(importlib.abc.MetaPathFinder):
    """A finder that leaves imports to others, and calls functions after some of them."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._searching = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # A finder of a package that asks all others, as this one does, asks this one again.
        if name not in self.waiting or getattr(self._searching, "name", None) == name:
            return None
        self._searching.name = name
        try:
            return self._wrap_spec(name, path, target)
        finally:
            self._searching.name = None

    def _wrap_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return what the other finders find, with a loader that calls the waiting functions."""
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    # A caller may only check that the module exists, without loading it.
                    spec.loader = _Loader(spec.loader, functools.partial(self._act, name))
                return spec  # type: ignore[no-any-return]
        return None

    def _act(self, name: str, module: ModuleType) -> None:
        """Call the functions that wait for a module's import."""
        for act in self.waiting.pop(name, []):
            act(module)


class _Loader(importlib.abc.Loader):
    """A loader that loads a module by the module's own loader, then calls a function on it."""

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
