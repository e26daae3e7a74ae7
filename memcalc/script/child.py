"""The process that runs a user's program over the stub driver and follows it.

The stub driver is loaded before this begins.
"""

import atexit
import base64
import contextlib
import os
import pickle
import posix
import re
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from memcalc.children import exit_reason
from memcalc.children.child import flush
from memcalc.engine import driver, simulated_gpu, source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.follow.mail import EndlessWaitError
from memcalc.engine.follow.session import Session
from memcalc.engine.follow.steps import EnoughStepsError
from memcalc.engine.packages import compiled, stand_ins
from memcalc.engine.serving import start
from memcalc.errors import EstimateError
from memcalc.files.trace_file import pack
from memcalc.script import surroundings
from memcalc.script.child_deaths import ChildDeathError, end_children
from memcalc.script.command import as_main, run
from memcalc.script.ranks import Ranks
from memcalc.script.records import ANSWER, REQUEST, Answer, Ending, Request

_ONE_OF_MANY = "this is rank {} of {}; messages of others are assumed to have arrived"
_LEFT = "The code called os._exit({}), which ends a process at once: leave that call out."
_INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""


def main(shared: Path) -> None:
    """Run the program of a request, write what it took, and end this process."""
    driver.hide_here()
    request = msgspec.json.decode((shared / REQUEST).read_bytes(), type=Request)
    if not request.one_of_many:
        run_program(request, shared / ANSWER)
    answers = Ranks(request, shared / ANSWER, run_program).run()
    (shared / ANSWER).write_bytes(msgspec.json.encode(answers))
    flush()
    os._exit(0)


def run_program(request: Request, answered: Path) -> NoReturn:
    """Run the program in this process, as one rank where others train with it, and end it."""
    world = request.world or 1
    session = Session(request.steps, one_of_many=world > 1)
    for said in (*request.said, *map(stand_ins.install, request.stand_ins)):
        session.say(said)
    sys.meta_path.append(compiled.Compiled(session.say))
    if world > 1:
        session.say(_ONE_OF_MANY.format(request.rank, world))
    ending, leave, own = Ending(code=0), os._exit, os.getpid()
    stack = contextlib.ExitStack()
    session.values.reads.opposite = request.way.opposite
    session.values.scale(request.way.scale)
    stack.enter_context(as_main(request.program))
    stack.enter_context(session)
    others = surroundings.program(request, session)

    def end() -> NoReturn:
        stack.close()
        told = msgspec.structs.replace(
            ending,
            steps=session.steps.most,
            started=tuple(others),
            others=internals.most_of_others(),
            trains=session.phases.backwards > 0,
            decides=session.values.reads.decisions,
            escapes=tuple(session.values.reads.escapes),
        )
        answer = _answer(session, request, told)
        _write(answered, msgspec.json.encode(answer))
        flush()
        # Threads of PyTorch's would wait for a GPU that never answers.
        leave(ending.code)

    def leaves(status: int) -> NoReturn:
        """As ``os._exit``, which would take the answer with it."""
        nonlocal ending
        if os.getpid() != own or threading.current_thread() is not threading.main_thread():
            leave(status)
        if request.work:
            _raised.update(_described(EstimateError(_LEFT.format(status))))
            status = status or 1
        ending = msgspec.structs.replace(ending, code=status)
        end()

    os._exit = posix._exit = leaves
    ending = _ended(request, session)
    # Python's exit ends daemon threads, whose errors nobody sees.
    threading.excepthook = lambda _: None
    if not ending.stopped and not _raised:
        atexit._run_exitfuncs()
    if ending.code == 1 and _by_number:
        _explain(session.values.reads.lines)
    end()


def _write(path: Path, data: bytes) -> None:
    """Write an answer whole or not at all; where that cannot be, say why."""
    try:
        made = path.with_suffix(".new")
        made.write_bytes(data)
        made.replace(path)
    except OSError as error:
        print(f"memcalc: the answer cannot be written: {error.strerror}.", file=sys.stderr)


def _explain(lines: Iterable[str]) -> None:
    """Say where an error of a number may come from.

    Args:
        lines: those that read a number that is not computed.
    """
    if torch.cuda.is_initialized():
        at = f" (at {', '.join(lines)})" if lines else ""
        print(f"memcalc: {_NOT_COMPUTED.format(at=at)}", file=sys.stderr)


_by_number: list[str] = []
"""The error that ended it, where that may come of numbers that are made up here."""
_NO_NUMBER = re.compile(r"math domain|expected a positive|expected a nonnegative|NaN|infinity")
"""In Python's words, to 3.14, of numbers that a function does not take."""
_NOT_COMPUTED = (
    "numbers that a GPU would compute are made up here{at}: if one causes this error, skip that "
    "line where MEMCALC_SIMULATED is set in the environment."
)


def _ended(request: Request, session: Session) -> Ending:
    """Run the program until its last line, or until it or something else ends it."""
    if (refusal := simulated_gpu.without_kernels()) is not None:
        print(f"memcalc: {refusal}", file=sys.stderr)
        return Ending(code=1)
    try:
        if request.work:
            sys.path[:] = request.path
            pickle.loads(Path(request.work).read_bytes())()
            return Ending(code=0)
        session.leave(run(request.program))
        threading._shutdown()  # type: ignore[attr-defined]
    except EnoughStepsError as enough:
        session.leave(enough)
        return Ending(code=0, stopped=True)
    except BaseException as error:
        session.phases.end(failed=isinstance(error, torch.cuda.OutOfMemoryError))
        if request.work:
            _raised.update(_described(error))
            lacks = stand_ins.lacking(error)
            return Ending(code=1, out_of_memory=_lacked(error), lacks=lacks)
        return _failed(error)
    return Ending(code=0)


def _failed(error: BaseException) -> Ending:
    """What ended a program."""
    if isinstance(error, KeyboardInterrupt):
        return Ending(code=_INTERRUPTED)
    if isinstance(error, ChildDeathError):
        end_children()
        return Ending(code=1)
    if isinstance(error, EndlessWaitError):
        print(f"memcalc: {error}", file=sys.stderr)
        return Ending(code=1)
    if isinstance(error, SystemExit):
        return Ending(code=_code_of(error))
    lacks = stand_ins.lacking(error)
    if lacks:
        # It is run again, and ends like this no more.
        return Ending(code=1, lacks=lacks)
    _show(error)
    of_a_number = isinstance(error, ValueError) and _NO_NUMBER.search(str(error))
    if of_a_number or isinstance(error, ZeroDivisionError | OverflowError):
        _by_number.append(str(error))
    helps = exit_reason.advice(error)
    if not helps and isinstance(error, ModuleNotFoundError):
        way = stand_ins.how_to_install([error.name or ""])
        helps = f"{way}." if way else _OTHER_PYTHON.format(sys.executable)
    if helps:
        print(f"memcalc: {helps}", file=sys.stderr)
    return Ending(code=1, out_of_memory=_lacked(error))


def _lacked(error: BaseException) -> str:
    """Return what PyTorch said of memory; empty: something else went wrong."""
    return str(error) if isinstance(error, torch.cuda.OutOfMemoryError) else ""


_OTHER_PYTHON = (
    "{} runs the script: install what it lacks there, or name the Python that has it, as in "
    "memcalc simulate --python $(which python) -- python train.py."
)
_raised: dict[str, str] = {}
"""What a function raised, for whoever sent it."""


def _described(error: BaseException) -> dict[str, str]:
    trace = "".join(traceback.format_exception(error))
    found = {"kind": type(error).__name__, "text": str(error), "trace": trace}
    with contextlib.suppress(Exception):
        found["error"] = base64.b64encode(pickle.dumps(error)).decode()
    return found


def _answer(session: Session, request: Request, ending: Ending) -> Answer:
    traces, refusal = session.recorded(request.program.name)
    if ending.out_of_memory:
        ending = msgspec.structs.replace(ending, refusal=refusal)
    return Answer(
        ending=ending,
        state=session.state(),
        traces={device: pack(trace) for device, trace in traces.items()},
        started=start.read(Path(request.serving)) if os.path.isdir(request.serving) else None,
        raised=_raised,
        ties=session.groups.messages.ties,
    )


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """The program's own traceback; where memory ran out, the user's own frames alone."""
    shown = traceback.TracebackException.from_exception(error)
    own = str(Path(__file__).resolve().parents[1])
    only_users = isinstance(error, torch.cuda.OutOfMemoryError)
    kept = [
        frame
        for frame in shown.stack
        if not frame.filename.startswith((own, "<frozen"))
        and not frame.filename.endswith("/runpy.py")
        and (not only_users or source_lines.is_users(frame.filename))
    ]
    # Python reads a script under our frames alone.
    shown.stack[:] = kept or ([] if isinstance(error, SyntaxError) else shown.stack[:])
    print("".join(shown.format()), end="", file=sys.stderr)
