"""What a simulating child does: it runs one program on a simulated GPU.

``{"plan": ..., "folder": ..., "weights": ...}`` is answered by ``{"ending": ..., "prediction":
..., "trace": ...}``, the last packed; the last two are missing where nothing was on the GPU.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

import memcalc.script.session as sessions
from memcalc.children import inductor
from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.children.child import Speaker
from memcalc.errors import EstimateError
from memcalc.estimation.question import asked
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import pack
from memcalc.records.plan import Plan
from memcalc.script import spawned, visible
from memcalc.script.command import Program, launched
from memcalc.script.endings import AtExit
from memcalc.script.launchers import Launch
from memcalc.script.patches import Patches
from memcalc.script.phases import EnoughStepsError
from memcalc.script.processes import Process
from memcalc.script.recorder import ScriptRecorder
from memcalc.script.records import Ending
from memcalc.script.running import as_main, run
from memcalc.script.subprocesses import Subprocesses
from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.workload import flash_attn

NAME = "simulated script"
_INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""
_NO_NUMBER = re.compile(r"math domain|expected a positive|expected a nonnegative|NaN|infinity")
"""In Python's words, to 3.14, of numbers that a function does not take."""


class _Left(BaseException):
    """The program called ``os._exit``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def warm(hint: str) -> None:
    """All that a program's simulation needs is imported with this module."""


def answer_for(breadcrumbs: Breadcrumbs) -> Callable[[dict[str, Any], Speaker], dict[str, Any]]:
    """A function that answers requests."""

    def ask(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
        os.chdir(request["folder"])
        inductor.as_it_was()
        with _kept_open(speaker.descriptor):
            return answer(decode(Plan, request["plan"]), breadcrumbs, weights=request["weights"])

    return ask


@contextlib.contextmanager
def _kept_open(descriptor: int) -> Iterator[None]:
    """Programs close all that they have not opened, so that the processes they start have none."""
    patches = Patches()

    def close(original: Callable[[int], None], fd: int) -> None:
        if fd == descriptor:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        original(fd)

    def close_range(original: Callable[[int, int], None], low: int, high: int) -> None:
        for first, last in ((low, min(high, descriptor)), (max(low, descriptor + 1), high)):
            original(first, last)

    patches.wrap(os, "close", close)
    patches.wrap(os, "closerange", close_range)
    try:
        yield
    finally:
        patches.undo()


def answer(
    plan: Plan, breadcrumbs: Breadcrumbs | None = None, *, weights: bool = False
) -> dict[str, Any]:
    """Run the program of a plan.

    Args:
        plan: its command, and the GPU.
        breadcrumbs: shall always say where the program is.
        weights: are read.

    Raises:
        MemcalcError: it cannot be run.
    """
    question = asked(plan)
    program, launch = launched(plan)
    process = _first(launch) if launch is not None else None
    session = sessions.Session(question, breadcrumbs=breadcrumbs, process=process, weights=weights)
    if launch is not None and launch.assumed:
        session.say(launch.assumed)
    if program.left_out:
        session.say(f"Python's own options are left out: {', '.join(program.left_out)}")
    visible.hide_from_libraries_alone()
    ending = _ending(program, session)
    if ending.out_of_memory:
        session.memory.count_refused()
    if not session.memory.events:
        return {"ending": encode(ending)}
    found = session.traced(program.name)
    return {
        "ending": encode(ending),
        "prediction": encode(found.prediction),
        "trace": pack(found.trace),
    }


def _first(launch: Launch) -> Process:
    """Of the processes that a launcher starts the one that is simulated."""
    return Process(rank=0, world=launch.world, environment=launch.environment(0))


def _ending(program: Program, session: sessions.Session) -> Ending:
    ended = Ending(code=0)
    started, others = spawned.Started(session.memory, session.say), Subprocesses()
    with as_main(program), session, _exits(), _at_exit(started, others) as last:
        try:
            ended = _ended(program, started, session.recorder)
            last.run()
        except EnoughStepsError:
            pass
        except _Left as left:
            ended = replace(ended, code=left.code, stopped=False)
        session.stop_other_threads()
    for stream in (sys.stdout, sys.stderr):
        # The program may have closed them.
        with contextlib.suppress(ValueError, OSError, AttributeError):
            stream.flush()
    return replace(ended, steps=session.phases.steps, started=others.commands)


def _ended(program: Program, started: spawned.Started, recorder: ScriptRecorder) -> Ending:
    """Run the program until its last line, or until it or something else ends it."""
    try:
        run(program)
        started.end()
        threading._shutdown()  # type: ignore[attr-defined]
    except _Left:
        raise
    except spawned.AskedElsewhere as error:
        raise EstimateError(str(error) or spawned.REFUSED) from None
    except EnoughStepsError:
        return Ending(code=0, stopped=True)
    except KeyboardInterrupt:
        return Ending(code=_INTERRUPTED)
    except SystemExit as error:
        return Ending(code=_code_of(error))
    except BaseException as error:
        _show(error)
        _say_what_helps(error, recorder)
        lacked = str(error) if isinstance(error, torch.OutOfMemoryError) else ""
        return Ending(code=1, out_of_memory=lacked)
    return Ending(code=0)


@contextlib.contextmanager
def _at_exit(started: spawned.Started, others: Subprocesses) -> Iterator[AtExit]:
    patches, last = Patches(), AtExit()
    last.install(patches)
    others.install(patches)
    spawned.install(patches, FakeTensor, started)
    try:
        yield last
    finally:
        patches.undo()


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    """``os._exit`` would take the answer with it."""
    leave, own = os._exit, os.getpid()

    def instead(code: int) -> None:
        if os.getpid() != own or threading.current_thread() is not threading.main_thread():
            leave(code)
        raise _Left(code)

    os._exit = instead  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def _say_what_helps(error: BaseException, recorder: ScriptRecorder) -> None:
    helps = None
    if isinstance(error, ModuleNotFoundError) and error.name == flash_attn.PACKAGE:
        helps = "flash-attn need not be installed here: add --flash-attn."
    elif _is_of_zeros(error) and recorder.read_at:
        helps = (
            f"the script read numbers from the GPU (at {recorder.read_at}), which are zeros where "
            "a real run would work them out: leave out what takes no zero where the environment "
            "has MEMCALC_SIMULATED."
        )
    if helps is not None:
        print(f"memcalc: {helps}", file=sys.stderr)


def _is_of_zeros(error: BaseException) -> bool:
    """What a program may end in that divides by a number, or takes its logarithm."""
    of_a_number = isinstance(error, ValueError) and _NO_NUMBER.search(str(error)) is not None
    return of_a_number or isinstance(error, ZeroDivisionError | OverflowError)


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """The program's own traceback, without the frames that run it."""
    own = str(Path(__file__).parent)
    shown = error.__traceback__
    while shown is not None and (
        shown.tb_frame.f_code.co_filename.startswith((own, "<frozen"))
        or shown.tb_frame.f_code.co_filename.endswith("/runpy.py")
    ):
        shown = shown.tb_next
    traceback.print_exception(type(error), error, shown)
