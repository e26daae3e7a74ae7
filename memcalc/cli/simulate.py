"""``memcalc simulate -- COMMAND``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from memcalc.cli.command import argument, exit_with, option, say, verb
from memcalc.cli.output import OUTPUT, VERBOSE, deliver_predictions, format_option
from memcalc.cli.progress import progress
from memcalc.cli.values import counted
from memcalc.errors import EstimateError, UsageError
from memcalc.files.formats import chosen, formats
from memcalc.script.prefixes import to_type
from memcalc.script.records import Ending
from memcalc.units import format_bytes

_AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Options behind the command are the command's own."""


@partial(verb, context_settings=_AS_TYPED)
@argument("command", "The command, after --, with its arguments.", nargs=-1, required=True)
@option("--gpu", help="GPU to simulate; see memcalc list gpus.")
@option(
    "--steps", type=counted(0), default=3, help="Stop after this many optimizer steps; 0: never."
)
@option("--torch", help="PyTorch version that will run. Default: the installed one.")
@option("--alloc-conf", help="PYTORCH_ALLOC_CONF of the run.")
@option(
    "--weights",
    is_flag=True,
    help="Download and read real weights, for scripts whose control flow depends on their values.",
)
@option("--python", help="The Python that runs it, with PyTorch. Default: this one.")
@format_option("predictions")
@OUTPUT
@VERBOSE
def command(
    command: tuple[str, ...],
    gpu: str | None,
    steps: int,
    torch: str | None,
    alloc_conf: str | None,
    weights: bool,
    python: str | None,
    format: str | None,
    output: Path | None,
    verbose: bool,
) -> None:
    """Run your own training script, unchanged, on a simulated GPU."""
    from memcalc.engine import environment
    from memcalc.script.simulate import plan_of, simulate

    name = chosen("simulation", format, output)
    if output is None and name in formats("page"):
        raise UsageError(f"{name} is written to a file: add --output simulated.{name}.")
    plan = plan_of(
        command,
        gpu=gpu,
        steps=steps,
        torch=torch,
        alloc_conf=alloc_conf,
    )
    if torch is not None and python is None:
        # What the program prints must not meet a line that moves.
        with progress(f"preparing PyTorch {torch}"):
            environment.find(torch)
    found = simulate(plan, weights=weights, python=python)
    if found.traced is None:
        _say_what_became(found.ending, figures=False)
        elsewhere = _elsewhere(found.ending)
        if found.ending.code:
            if elsewhere:
                say(f"memcalc: {elsewhere}")
            raise exit_with(found.ending.code)
        if elsewhere:
            raise EstimateError(f"The script itself put nothing on the GPU. {elsewhere}")
        raise EstimateError("The script put nothing on the GPU: does it use torch.device('cuda')?")
    if output is not None and name in formats("page"):
        from memcalc.cli.report import draw

        draw(found.traced, name, output)
    else:
        deliver_predictions([found.traced.prediction], name, output, verbose=verbose)
    sys.stdout.flush()
    _say_what_became(found.ending)
    raise exit_with(found.ending.code)


def _elsewhere(ending: Ending) -> str:
    """What to type in place of a script that starts others; empty: it starts none."""
    had = f", one with up to {format_bytes(ending.others)} of GPU memory" if ending.others else ""
    if ending.started:
        return f"It starts other programs{had}: type {to_type(ending.started)}."
    if not had:
        return ""
    return f"It starts other processes{had}: run the code of one in the script's own process."


def _say_what_became(ending: Ending, *, figures: bool = True) -> None:
    until_then = (
        "; the figures are those until then" if figures else " before anything was on the GPU"
    )
    if ending.out_of_memory:
        say("memcalc: GPU memory ran out. Without --gpu there is no limit.")
    elif ending.code:
        say(f"memcalc: the script ended with exit code {ending.code}{until_then}.")
    elif ending.trains and not ending.steps:
        say("memcalc: the script ended without an optimizer step.")
