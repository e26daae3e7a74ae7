"""Runs a user's program over the stub driver in a fresh process and reads its memory."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.catalog.plan import STEPS, make
from memcalc.engine.packages.stand_ins import STAND_INS
from memcalc.errors import EstimateError
from memcalc.estimation.card import card_memory
from memcalc.estimation.kept import Traced, keep
from memcalc.estimation.question import ResolvedPlan, look_up
from memcalc.records.plan import Plan
from memcalc.script.answer import Simulated, add_ending, combine_ranks
from memcalc.script.command import Program, find_launched
from memcalc.script.imports import check_imports
from memcalc.script.opened import Opened
from memcalc.script.other_ways import both_ways
from memcalc.script.process import Ran, Run
from memcalc.script.records import Command, Ending, Way
from memcalc.script.serving import find_server, simulate_server


def simulate(
    plan: Plan,
    folder: Path | None = None,
    *,
    quiet: bool = False,
    timeout: float = math.inf,
    follows_values: bool = True,
    uses_cudnn: bool = True,
) -> Simulated:
    """Run a plan's program on a simulated GPU; its output goes to standard error.

    A server is ended as soon as its engine is up, and the engine's figures are the answer. If a
    program's memory runs out on the plan's GPU, it runs once more without a limit, which tells its
    whole need. Of a program that replaces itself by another, as launchers do, the other is run.

    Args:
        plan: its command, the GPU, and the Python that runs it; None is this one.
        folder: where to run it; None is the current one.
        quiet: what it prints is not shown.
        timeout: seconds after which it is ended.
        follows_values: what it reads from the GPU is followed; else it is all zeros.
        uses_cudnn: convolutions may run cuDNN.

    Raises:
        UsageError: the command cannot be understood.
        EstimateError: the process died, or its time was up, or there is no PyTorch with CUDA, or
            a package that the script imports.
    """
    folder = Path.cwd() if folder is None else folder
    server = find_server(plan)
    if server is not None:
        served = simulate_server(server, plan, folder, quiet=quiet, timeout=timeout)
        return Simulated(ending=Ending(code=0), traced=None, served=served)
    program, launch = find_launched(plan, folder)
    question = look_up(plan)
    run = Run(question, program, launch, folder)
    check_imports(program, plan.command or "", folder, plan.python or sys.executable, STAND_INS)
    run.timeout, run.follows_values, run.uses_cudnn = timeout, follows_values, uses_cudnn
    began = time.monotonic()
    ran = run.with_stand_ins(limited=plan.gpu is not None, quiet=quiet)
    if (becomes := next(iter(ran.found.values())).ending.becomes) is not None:
        left = timeout - (time.monotonic() - began)
        return _simulate_next(becomes, plan, run.opened, quiet=quiet, timeout=left)
    found = _run_again(run, ran, question, began)
    if found.traced is not None:
        keep(found.traced)
    return replace(found, opened=run.opened)


def _run_again(run: Run, ran: Ran, question: ResolvedPlan, began: float) -> Simulated:
    """Run ranks again whose memory ran out or that numbers decided; combine them to one answer."""
    gpu = question.gpu
    room = card_memory(gpu).room if gpu is not None else None
    each = {rank: _rerun_without_limit(run, rank, one, room) for rank, one in ran.found.items()}
    if len(each) == 1:
        ((rank, one),) = each.items()
        alone = None if ran.answers is None else rank

        def again(way: Way) -> Simulated:
            ran_again = run.ranks(limited=gpu is not None, again=True, way=way, rank=alone)
            return ran_again.found[rank]

        each[rank] = both_ways(one, again, time.monotonic() - began)
    return each[0] if ran.answers is None else combine_ranks(each, ran.answers, question.plan)


def _simulate_next(
    command: Command, plan: Plan, opened: Opened, *, quiet: bool, timeout: float
) -> Simulated:
    """Simulate the command that replaced a program (exec); return it as the program's answer.

    Raises:
        EstimateError: it is the same command without end.
    """
    if command.typed == plan.command:
        raise EstimateError(f"The script starts itself again without end: {command.typed}.")
    given = replace(plan, command=command.typed)
    found = simulate(given, Path(command.folder), quiet=quiet, timeout=timeout)
    traced = found.traced
    if traced is not None:
        said = f"the script became {shlex.join(command.words)}, which ran in its place"
        told = (said, *traced.prediction.assumptions)
        traced = replace(traced, prediction=replace(traced.prediction, plan=plan, assumptions=told))
        keep(traced)
    both = replace(found.opened, paths=found.opened.paths | opened.paths)
    both = replace(both, unknown=opened.unknown or both.unknown)
    return replace(found, traced=traced, opened=both)


def run_work(question: ResolvedPlan, work: bytes) -> tuple[Traced | None, BaseException | None]:
    """Call a pickled function on a simulated GPU; return its trace and the error it raised.

    Raises:
        EstimateError: the process died, or there is no PyTorch with CUDA.
    """
    program = Program(module=question.plan.name)
    run = Run(question, program, None, Path.cwd(), work)
    found = run.with_stand_ins(limited=question.gpu is not None).found[0]
    traced = found.traced
    if traced is not None and run.raised is not None:
        traced = add_ending(traced, found.ending, room=None)
    return traced, run.raised


def _rerun_without_limit(run: Run, rank: int, found: Simulated, room: int | None) -> Simulated:
    """Run a rank again without a limit if memory ran out; add growth and refused request."""
    refusal = found.ending.refusal
    if found.ending.out_of_memory and refusal is not None:
        whole = run.ranks(limited=False, again=True, rank=rank).found[rank]
        if whole.traced is not None and not whole.ending.code:
            found = replace(found, traced=whole.traced)
        else:
            last = replace(refusal, last=True)
            found = replace(found, ending=replace(found.ending, refusal=last))
    if found.traced is None:
        return found
    return replace(found, traced=add_ending(found.traced, found.ending, room))


def make_plan(command: Sequence[str], **settings: Any) -> Plan:
    """Make a plan that runs a command; settings that are ``None`` are left out.

    Raises:
        UsageError: a setting makes no sense.
    """
    return make({"steps": STEPS, **settings, "command": shlex.join(command)})
