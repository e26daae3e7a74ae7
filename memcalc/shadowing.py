"""Says which file hides a module that memcalc imports, such as a ``json.py`` on ``PYTHONPATH``.

It imports nothing that such a file could hide: Python itself has loaded these two.
"""

import os
import sys

_SAID = "{} hides the {} module that memcalc imports: rename it, or run memcalc without it."
_COMMANDS = ("memcalc", "-m")
"""How ``sys.argv`` begins while a command imports its package; else a program imports memcalc."""


def describe(error: BaseException) -> str:
    """Return a sentence on the file that hides a module, or "" if no such file led to the error."""
    name = getattr(error, "name", None) if isinstance(error, ImportError) else None
    if isinstance(error, AttributeError):
        name = getattr(error.obj, "__name__", None)
    names, trace = [str(name).partition(".")[0]], error.__traceback__
    while trace is not None:
        # A module that fails by itself while it is imported.
        names.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    hidden = (names[0], *sys.stdlib_module_names.intersection(names))
    return next(filter(None, (describe_hiding(one) for one in hidden if one != "memcalc")), "")


def describe_hiding(name: str) -> str:
    """Return a sentence on the first module of a name on the path if it hides another, or ""."""
    folders = dict.fromkeys(os.path.realpath(entry) for entry in sys.path)
    inside = (f"{name}.py", os.path.join(name, "__init__.py"))
    paths = [os.path.join(folder, one) for folder in folders for one in inside]
    found = [path for path in paths if os.path.isfile(path)]
    return _SAID.format(found[0], name) if len(found) > 1 else ""


def exit_if_command(error: BaseException) -> None:
    """Exit memcalc's own command with one sentence if a hidden module led to the error."""
    if os.path.basename(sys.argv[0]) in _COMMANDS and (said := describe(error)):
        print(f"error: {said}", file=sys.stderr)
        raise SystemExit(2) from None
