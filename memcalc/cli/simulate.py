"""``memcalc simulate -- COMMAND``."""

from __future__ import annotations

import shlex
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

import typer
from msgspec.structs import replace

from memcalc.cli.command import say
from memcalc.cli.declare import verb
from memcalc.cli.output import Output, formats, put
from memcalc.cli.progress import progress
from memcalc.cli.saved import keep_last
from memcalc.errors import EstimateError, UsageError
from memcalc.records.fields import FIELDS
from memcalc.script.command import to_type
from memcalc.script.records import Ending
from memcalc.units import format_bytes

if TYPE_CHECKING:
    from memcalc.estimation.kept import Traced


@verb(
    "memcalc simulate --gpu t4 -- python train.py --epochs 1",
    "memcalc simulate --steps 5 -o sim.json -- python -m my_package.train",
    "memcalc simulate --gpu a100-80gb -- trl sft --config sft.yaml",
    "memcalc simulate --rank all -- torchrun --nproc-per-node 4 pipeline.py",
    "memcalc simulate --gpu h100 -- vllm serve Qwen/Qwen2.5-7B --max-model-len 8192",
    starts_command=True,
    fetches=True,
)
def command(
    words: list[str],
    output: Output,
    gpu: str | None = None,
    rank: str | None = None,
    steps: int = 3,
    torch: str | None = None,
    alloc_conf: str | None = None,
    weights: bool = False,
    python: str | None = None,
    vllm: str | None = None,
) -> None:
    """Run your own training script, unchanged, on a simulated GPU."""
    from memcalc.script.serving import find_server
    from memcalc.script.simulate import make_plan, simulate

    out = output.choose_format("simulation")
    name = str(out.format)
    if out.file is None and name in formats("page"):
        raise UsageError(f"{name} is written to a file: add --output simulated.{name}.")
    plan = make_plan(
        words,
        gpu=gpu,
        steps=steps,
        torch=torch,
        alloc_conf=alloc_conf,
        weights=weights,
        python=python,
        rank=None if rank is None else FIELDS["rank"].read(rank),
    )
    if gpu is None:
        _say_where_gpu_belongs(words)
    if name in formats("page") and find_server(plan) is not None:
        raise UsageError(f"An engine has no timeline for {name}: type --format json.")
    python = _prepare_environment(python, torch, vllm)
    found = simulate(replace(plan, python=python))
    if found.served is not None:
        out.deliver([found.served])
        return
    if found.traced is None:
        exit_without_gpu_use(found.ending)
    _deliver(found.traced, out)
    _print_outcome(found.ending)
    raise typer.Exit(found.ending.code)


def _deliver(found: Traced, out: Output) -> None:
    """Print or write a traced run, and the next command to type."""
    if out.file is not None and out.format in formats("page"):
        from memcalc.cli.report import draw

        draw(found, out.format, out.file)
    else:
        # A file explains itself when this run is long forgotten.
        out.deliver([found.prediction], traces=[found.trace] if out.file is not None else ())
    _tell_next(found, out)
    sys.stdout.flush()


def _tell_next(found: Traced, out: Output) -> None:
    """Save the run as the last one and print the next command, or the verdict beside a file."""
    from memcalc.report.answer import headline

    if out.file is not None:
        say(f"memcalc: {headline(found.prediction).text}")
    kept = keep_last(found)
    if out.format in ("table", "markdown") and out.file is None and kept is not None:
        put("next: what is alive at the peak, and at which lines of the script\n")
        put("  memcalc explain last\n")


def _prepare_environment(python: str | None, torch: str | None, vllm: str | None) -> str | None:
    """Install the PyTorch or vLLM named; return the Python that runs the program.

    The progress line ends before the program prints.
    """
    from memcalc.engine import environment
    from memcalc.estimation.serving.run import require_python

    if python is None and vllm is not None:
        with progress(f"preparing vLLM {vllm}"):
            return require_python(None, vllm)
    if python is None and torch is not None:
        with progress(f"preparing PyTorch {torch}"):
            environment.find(torch)
    return python


def exit_without_gpu_use(ending: Ending) -> NoReturn:
    """Print why a script put nothing on the GPU and what to type, and exit or raise."""
    _print_outcome(ending, figures=False)
    elsewhere = _suggest_next_command(ending)
    if ending.code:
        if elsewhere:
            say(f"memcalc: {elsewhere}")
        raise typer.Exit(ending.code)
    if elsewhere:
        raise EstimateError(f"The script itself put nothing on the GPU. {elsewhere}")
    raise EstimateError("The script put nothing on the GPU: does it use torch.device('cuda')?")


def _say_where_gpu_belongs(command: list[str]) -> None:
    """Print a warning if ``--gpu NAME`` stands after the script's name."""
    from memcalc.catalog import gpus

    for at, (flag, name) in enumerate(pairwise(command)):
        if flag != "--gpu":
            continue
        try:
            gpus.find(name)
        except UsageError:  # The number of a GPU, or a name that only the script knows.
            continue
        script = shlex.join([*command[:at], *command[at + 2 :]])
        say(
            f"memcalc: --gpu {name} stands after the script, so the script got it. For a verdict, "
            f"type memcalc simulate --gpu {name} -- {script}"
        )


def _suggest_next_command(ending: Ending) -> str:
    """Return a sentence with the command to simulate if the script starts others, or ""."""
    had = f", one with up to {format_bytes(ending.others)} of GPU memory" if ending.others else ""
    if ending.started:
        return f"It starts other programs{had}: type {to_type(ending.started)}."
    if not had:
        return ""
    return f"It starts other processes{had}: run the code of one in the script's own process."


def _print_outcome(ending: Ending, *, figures: bool = True) -> None:
    """Print a script's failure: out of memory, exit code, or no optimizer step."""
    until_then = (
        "; the figures are those until then" if figures else " before anything was on the GPU"
    )
    refusal = ending.refusal
    if ending.out_of_memory and not (refusal is not None and refusal.by_own_limit):
        # Figures of a run without a limit have said where it ran out.
        if not figures or refusal is None or refusal.last:
            say("memcalc: GPU memory ran out; leave --gpu out for a run without a limit.")
    elif ending.code:
        say(f"memcalc: the script ended with exit code {ending.code}{until_then}.")
    elif ending.trains and not ending.steps:
        say("memcalc: the script ended without an optimizer step.")
