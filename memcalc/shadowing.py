"""Says which file hides a module that memcalc imports, such as a ``json.py`` on ``PYTHONPATH``.

It imports nothing that such a file could hide: Python itself has loaded these two.
"""

import os
import sys

_SAID = "{} hides the {} module that memcalc imports: rename it, or run memcalc without it."
_INSTALLED = (os.path.dirname(os.path.realpath(os.__file__)), "site-packages", "dist-packages")
"""Parts of the paths of Python's own modules, and of installed packages."""
_COMMANDS = ("memcalc", "-m")
"""How ``sys.argv`` begins while a command imports its package; else a program imports memcalc."""


def describe(error: BaseException) -> str:
    """Return a sentence on the file that hides a module, or "" if no such file led to the error."""
    name = getattr(error, "name", None) if isinstance(error, ImportError) else None
    if isinstance(error, AttributeError):
        name = getattr(error.obj, "__name__", None)
    names, trace = [str(name)], error.__traceback__
    if isinstance(error, SyntaxError):
        names.append(os.path.basename(str(error.filename)))
    while trace is not None:
        own = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        # A package may be hidden on purpose, by a newer checkout, whose functions may fail.
        if own in sys.stdlib_module_names or trace.tb_frame.f_code.co_name == "<module>":
            names.append(own)
        trace = trace.tb_next
    tops = dict.fromkeys(name.partition(".")[0] for name in names)
    return next(filter(None, (describe_hiding(one) for one in tops if one != "memcalc")), "")


def describe_hiding(name: str) -> str:
    """Return a sentence on a file on the path that hides an installed module of a name, or ""."""
    folders = dict.fromkeys(os.path.realpath(entry) for entry in sys.path)
    inside = (f"{name}.py", os.path.join(name, "__init__.py"))
    paths = [os.path.join(folder, one) for folder in folders for one in inside]
    found = [path for path in paths if os.path.isfile(path)]
    installed = [any(part in path for part in _INSTALLED) for path in found]
    return _SAID.format(found[0], name) if any(installed) and not installed[0] else ""


def exit_if_command(error: BaseException) -> None:
    """Exit memcalc's own command with one sentence if a hidden module led to the error."""
    if os.path.basename(sys.argv[0]) in _COMMANDS and (said := describe(error)):
        print(f"error: {said}", file=sys.stderr)
        raise SystemExit(2) from None
