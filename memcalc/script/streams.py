"""The stream of a program's output: standard output of a command is its answer."""

import subprocess
import sys


def stderr_or_nothing(*, quiet: bool = False) -> int:
    """Return the descriptor of standard error, or DEVNULL if quiet or if it is closed."""
    try:
        return subprocess.DEVNULL if quiet else sys.stderr.fileno()
    except (ValueError, OSError, AttributeError):
        return subprocess.DEVNULL
