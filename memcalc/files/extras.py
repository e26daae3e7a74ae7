"""Packages that only some answers need, checked before the work."""

import importlib.util


def lacking(needs: str, package: str, install: str = "", *, module: str = "") -> str | None:
    """What to say where a package is not installed; ``None``: it is.

    Args:
        needs: who needs it, with the verb.
        package: as people call it.
        install: what pip is told, if not that.
        module: what it is imported as, if not that.
    """
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
