"""Lets another Python import memcalc and what it needs, and nothing else of this Python."""

from pathlib import Path

import msgspec

_BRINGS = """
import sys
from importlib.machinery import PathFinder as _PathFinder
class _Memcalc:
    own, needed, path_finder = {own!r}, {needed!r}, _PathFinder
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # Compiled code that a Python has is built for it, so its own msgspec comes first.
        folders = {{"memcalc": [cls.own], "msgspec": [*sys.path, cls.needed]}}.get(name)
        return folders and cls.path_finder.find_spec(name, folders)
sys.meta_path.insert(0, _Memcalc)
try:
    import msgspec
except ImportError:
    sys.exit(
        f"memcalc: {{sys.executable}} has another version than memcalc's own Python, for which "
        f"memcalc brings no msgspec: type {{sys.executable}} -m pip install msgspec."
    )
"""


def code() -> str:
    """Return source for ``python -c`` that lets another Python import memcalc and msgspec.

    The rest of this Python's packages stay hidden: a library that asks whether another one is
    installed gets the answer of the Python that it runs in.
    """
    own = Path(__file__).resolve().parents[2]
    needed = Path(str(msgspec.__file__)).resolve().parents[1]
    return _BRINGS.format(own=str(own), needed=str(needed))
