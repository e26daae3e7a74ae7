"""The stream of a program's output: standard output of a command is its answer."""

import subprocess
import sys


def stderr_or_nothing(*, quiet: bool = False) -> int:
    """Return standard error for what a program prints, or nowhere: it is closed, or no file."""
    try:
        return subprocess.DEVNULL if quiet else sys.stderr.fileno()
    except (ValueError, OSError, AttributeError):
        return subprocess.DEVNULL
