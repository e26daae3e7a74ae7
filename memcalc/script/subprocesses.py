"""Names programs that a script starts by subprocess: they see no simulated GPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.script import prefixes


class Subprocesses:
    """The Python programs among them, as they would be typed."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def install(self, patches: Patches) -> None:
        """See each as it is started."""

        def popen(original: Any, process: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
            self._see(args)
            return original(process, args, *others, **kwargs)

        def system(original: Any, command: Any) -> Any:
            self._see(command)
            return original(command)

        patches.wrap(subprocess.Popen, "__init__", popen)
        patches.wrap(os, "system", system)

    @property
    def commands(self) -> tuple[str, ...]:
        """What was started, each command once."""
        return tuple(self._found)

    def _see(self, args: Any) -> None:
        """Note a command that starts Python; of a shell's each that does."""
        if isinstance(args, str | bytes):
            found = prefixes.commands(os.fsdecode(args))
        elif isinstance(args, list | tuple):
            words = [os.fsdecode(one) for one in args if isinstance(one, str | bytes | os.PathLike)]
            found = prefixes.commands(shlex.join(words))
        else:
            found = []
        for command in found:
            # This Python by its short name.
            typed = command.replace(sys.executable, "python")
            if " -c " not in typed:
                self._found[typed] = None
