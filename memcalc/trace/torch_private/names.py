"""Asks for a private name, and puts another thing in its place for a while."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.version import NEWEST_TORCH


def ask(path: str) -> Any:
    """Find a private object by its path, such as ``torch._C:_current_autograd_node``.

    Raises:
        EstimateError: this PyTorch has no such thing.
    """
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        raise EstimateError(
            f"PyTorch {torch.__version__} has no {path.replace(':', '.')}, which a simulated run "
            f"needs: install PyTorch {'.'.join(map(str, NEWEST_TORCH))}, or use --method analytic."
        ) from None


def installed_version() -> tuple[int, int]:
    """Major and minor of the PyTorch that runs here."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put a value in the place of an attribute while the context lasts."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
