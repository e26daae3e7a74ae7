"""Puts a function in the place of another for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap a function of a class or module; there is nothing to do where it has no such one."""
    found = getattr(owner, name, None)
    if found is None:
        yield
        return
    own = name in vars(owner)
    setattr(owner, name, wrap(found))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, found)
        else:
            delattr(owner, name)
