"""Packages that only some answers need, checked before the work."""

import importlib.util


def lacking(needs: str, package: str, install: str = "", *, module: str = "") -> str | None:
    """Return a sentence with the pip command if a package is not installed, else None."""
    if can_import(module or package):
        return None
    return f"{needs} {package}, which is not installed: type pip install {install or package}"


def can_import(module: str) -> bool:
    """Return True if a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package that it is a part of.
        return False
