"""The system's C compiler.

It imports nothing of memcalc, for the build of the wheel loads it by its path.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence

_PATIENCE = 300


class CompileError(Exception):
    """Something cannot be compiled; the sentence says why."""


def system_compiler() -> list[str] | None:
    """Return the command of the system's C compiler, or of ``$CC``; None if it is missing."""
    named = os.environ.get("CC", "").split() or ["cc"]
    found = shutil.which(named[0])
    return [found, *named[1:]] if found else None


def run(command: Sequence[str], what: str) -> None:
    """Run a compiler command; ``what`` names in errors what is compiled.

    Raises:
        CompileError: it cannot be compiled.
    """
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr).split())[:500]
        raise CompileError(f"{command[0]} cannot compile {what}: {said}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(f"{command[0]} cannot compile {what}: {error}") from None
