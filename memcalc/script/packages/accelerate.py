"""accelerate: a program of its launcher runs in the script's process.

Command lines of other packages (``trl sft``) call the functions of ``accelerate launch``, and only
the process that they are called in has a simulated GPU. Its launchers of several processes call
torchrun's function, which is followed by itself.
Source: accelerate/commands/launch.py (1.15).
"""

import os
from types import ModuleType
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.script.command import Program, as_main, run


def install(patches: Patches) -> None:
    """Patch accelerate's launcher, once imported, to run its program in this process."""

    def patch_launchers(module: ModuleType) -> None:
        def run_program(original: Any, args: Any) -> None:
            if args.no_python:
                original(args)
                return
            (_, *words), environment = module.prepare_simple_launcher_cmd_env(args)
            for name, value in environment.items():
                if os.environ.get(name) != value:
                    patches.environment(name, value)
            _run_program(words)

        patches.wrap(module, "simple_launcher", run_program)

    patches.when_imported("accelerate.commands.launch", patch_launchers)


def _run_program(words: list[str]) -> None:
    """Run a script or ``-m`` module, with its arguments, as the main program in this process."""
    if words[0] == "-m":
        program = Program(module=words[1], arguments=tuple(words[2:]))
    else:
        program = Program(path=words[0], arguments=tuple(words[1:]))
    try:
        with as_main(program):
            run(program)
    except SystemExit as ending:
        if ending.code:
            raise
