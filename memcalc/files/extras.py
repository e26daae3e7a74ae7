"""Packages that only some answers need, checked before the work."""

import importlib.util


def lacking(needs: str, package: str, install: str = "", *, module: str = "") -> str | None:
    """What to say where a package (or module of it) is not installed; ``None``: it is."""
    if is_here(module or package):
        return None
    what = install or package
    quoted = f"'{what}'" if "[" in what else what
    return f"{needs} {package}, which is not installed: type pip install {quoted}"


def is_here(module: str) -> bool:
    """It can be imported; nothing is."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package that it is a part of.
        return False
