"""accelerate: a program of its launcher runs in the script's process.

Command lines of other packages (``trl sft``) call the functions of ``accelerate launch``, and only
the process that they are called in has a simulated GPU.
Source: accelerate/commands/launch.py (1.15).
"""

import os
import shlex
import sys
from types import ModuleType
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.script.command import Program, as_main, run


def install(patches: Patches) -> None:
    """Run programs of accelerate's launcher here, once it is imported."""

    def replace(module: ModuleType) -> None:
        def run(original: Any, args: Any) -> None:
            if args.no_python:
                original(args)
                return
            (_, *words), environment = module.prepare_simple_launcher_cmd_env(args)
            for name, value in environment.items():
                if os.environ.get(name) != value:
                    patches.environment(name, value)
            _run(words)

        def refuse(original: Any, args: Any) -> None:
            started = shlex.join([args.training_script, *args.training_script_args])
            raise SystemExit(
                f"{os.path.basename(sys.argv[0])} starts {args.num_processes} processes: type "
                f"memcalc simulate -- accelerate launch --num_processes {args.num_processes} "
                f"{'-m ' if args.module else ''}{started}"
            )

        patches.wrap(module, "simple_launcher", run)
        for name in ("multi_gpu_launcher", "deepspeed_launcher"):
            patches.wrap(module, name, refuse)

    patches.when_imported("accelerate.commands.launch", replace)


def _run(words: list[str]) -> None:
    """Run the program of Python's arguments until it ends without an error."""
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
