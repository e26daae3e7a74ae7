"""The process that runs a user's program over the stub driver and follows it.

The stub driver is loaded before this begins.
"""

import atexit
import base64
import contextlib
import gc
import os
import pickle
import posix
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from memcalc.children.child import flush, show
from memcalc.children.exit_reason import advice, format_error
from memcalc.engine import driver, simulated_gpu, source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.follow.mail import EndlessWaitError
from memcalc.engine.follow.session import ONE_OF_MANY, Session
from memcalc.engine.follow.steps import EnoughStepsError
from memcalc.engine.packages import compiled, stand_ins
from memcalc.engine.serving import start
from memcalc.errors import EstimateError
from memcalc.files.trace_file import pack
from memcalc.script import failure, opened, surroundings
from memcalc.script.child_deaths import ChildDeathError, end_children
from memcalc.script.command import as_main, run
from memcalc.script.ranks import Ranks
from memcalc.script.records import ANSWER, REQUEST, Answer, Command, Ending, Request
from memcalc.version import pip_line

_NO_ANSWER = "The run cannot be told, for the program changed what Python is: {}: {}."
_LEFT = "The code called os._exit({}), which ends a process at once: leave that call out."
_getpid = os.getpid
"""Programs replace functions of ``os``."""
_INTERRUPTED = 130
"""A shell's exit code of a program that Ctrl-C ended."""


def main(shared: Path) -> None:
    """Run the requested program on the simulated GPU, write its answer to a file, and exit."""
    driver.hide_packages()
    request = msgspec.json.decode((shared / REQUEST).read_bytes(), type=Request)
    opened.note_in(shared / opened.FILE)
    if not request.one_of_many:
        run_program(request, shared / ANSWER)
    answers = Ranks(request, shared / ANSWER, run_program).run()
    _write(shared / ANSWER, msgspec.json.encode(answers))
    flush()
    os._exit(0)


def run_program(request: Request, answered: Path) -> NoReturn:
    """Run the program in this process, as one rank of several if asked, and exit."""
    _Run(request, answered).run()


class _Run:
    """A run of a program in this process."""

    def __init__(self, request: Request, answered: Path) -> None:
        self._request, self._answered = request, answered
        self._world = request.world or 1
        self._session = Session(
            request.steps,
            one_of_many=self._world > 1,
            follows_values=request.follows_values,
            uses_cudnn=request.uses_cudnn,
        )
        self._ending = Ending(code=0)
        self._exit, self._own = os._exit, os.getpid()
        self._variables = dict(os.environ)
        self._stack = contextlib.ExitStack()
        self._others: Iterable[str] = ()

    def run(self) -> NoReturn:
        """Run the program to its end or stop, write its answer to a file, and exit."""
        request, session = self._request, self._session
        for assumed in (*request.said, *map(stand_ins.install, request.stand_ins)):
            session.say(assumed)
        sys.meta_path.append(compiled.Compiled(session.say))
        if self._world > 1:
            session.say(ONE_OF_MANY.format(request.rank, self._world))
        session.values.reads.opposite = request.way.opposite
        session.values.vary(request.way.scale)
        self._stack.enter_context(as_main(request.program))
        self._stack.enter_context(session)
        self._others = surroundings.program(request, session)
        os._exit = posix._exit = self._replace_exit
        session.patches.wrap(os, "execv", self._replace_exec)
        session.patches.wrap(os, "execve", self._replace_exec)
        session.patches.wrap_later("torch.distributed.run", "run", self._replace_torchrun)
        try:
            self._ending = _run_to_end(request, session)
            self._finish()
        finally:
            self._give_up()

    def _finish(self) -> NoReturn:
        """Run exit handlers as Python does at a program's end; then write the answer and exit."""
        # Python's exit ends daemon threads, whose errors nobody sees.
        threading.excepthook = lambda _: None
        if not self._ending.stopped and not _raised:
            atexit._run_exitfuncs()
            _delete_temporary_files()
        if self._ending.code == 1 and _by_number:
            _explain_unknown_numbers(self._session.values.reads.lines)
        if _getpid() != self._own:
            # A fork that went on to the program's last line has none of its memory.
            flush()
            self._exit(self._ending.code)
        self._end_process()

    def _end_process(self) -> NoReturn:
        """Write the answer, and exit with the program's code."""
        try:
            self._write_answer()
            flush()
            # Threads of PyTorch's would wait for a GPU that never answers.
            self._exit(self._ending.code)
        finally:
            self._give_up()

    def _give_up(self) -> NoReturn:
        """Leave a sentence that an error took the answer, and exit.

        A program may have removed even the names of errors, which ``except`` needs.
        """
        try:
            if _getpid() == self._own:
                error = sys.exc_info()[1]
                told = _NO_ANSWER.format(type(error).__name__, error)
                failure.leave(self._answered.parent, told)
        finally:
            self._exit(self._ending.code or 1)

    def _write_answer(self) -> None:
        self._stack.close()
        session = self._session
        ending = msgspec.structs.replace(
            self._ending,
            steps=session.steps.most,
            started=tuple(self._others),
            others=internals.peak_of_other_processes(),
            trains=session.phases.backwards > 0,
            decides=session.values.reads.decisions,
            escapes=tuple(session.values.reads.escapes),
        )
        answer = _make_answer(session, self._request, ending)
        _write(self._answered, msgspec.json.encode(answer))

    def _replace_exit(self, status: int) -> NoReturn:
        """Replace ``os._exit``: write the answer first, then exit with the status."""
        if _getpid() != self._own or threading.current_thread() is not threading.main_thread():
            self._exit(status)
        if self._request.work:
            _raised.update(_serialize_error(EstimateError(_LEFT.format(status))))
            status = status or 1
        self._ending = msgspec.structs.replace(self._ending, code=status)
        self._end_process()

    def _replace_exec(self, original: Any, path: Any, words: Any, variables: Any = None) -> None:
        """Replace ``os.execv``: exit with the command as the answer; memcalc runs it next."""
        given = (variables,) if variables is not None else ()
        if not os.path.isfile(path):
            original(path, words, *given)
        self._become(lambda: original(path, words, *given), (path, *words[1:]), variables)

    def _replace_torchrun(self, original: Any, given: Any) -> None:
        """Replace torchrun's own function, which launchers call: its command runs next."""
        words = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={given.nnodes}"]
        words.append(f"--nproc-per-node={given.nproc_per_node}")
        words += ["-m"] * bool(given.module) + ["--no-python"] * bool(given.no_python)
        words += [given.training_script, *given.training_script_args]
        self._become(lambda: original(given), words)

    def _become(
        self, otherwise: Callable[[], object], words: Sequence[Any], variables: Any = None
    ) -> None:
        """Exit with a command as the answer; elsewhere than in the program, call ``otherwise``."""
        in_place = _getpid() == self._own and threading.current_thread() is threading.main_thread()
        if not in_place or self._request.work:
            otherwise()
            return
        after = {os.fsdecode(k): os.fsdecode(v) for k, v in (variables or os.environ).items()}
        new = {name: value for name, value in after.items() if self._variables.get(name) != value}
        command = tuple(os.fsdecode(one) for one in words)
        becomes = Command(words=command, variables=new, folder=os.getcwd())
        self._ending = Ending(code=0, becomes=becomes)
        self._end_process()


def _delete_temporary_files() -> None:
    """Close and delete the temporary files that the ended program left open."""
    kind = tempfile._TemporaryFileCloser  # type: ignore[attr-defined]
    for one in gc.get_referrers(kind):
        if isinstance(one, kind):
            one.close()


def _write(path: Path, data: bytes) -> None:
    """Write a whole file or none; if the disk refuses, leave a sentence on why."""
    made = path.with_suffix(".new")
    try:
        made.write_bytes(data)
        made.replace(path)
    except OSError as error:
        failure.leave(path.parent, failure.NO_ROOM.format(path.parent, error.strerror))


def _explain_unknown_numbers(lines: Iterable[str]) -> None:
    """Print the lines that read uncomputed numbers, as a likely cause of an error."""
    if torch.cuda.is_initialized():
        at = f" (at {', '.join(lines)})" if lines else ""
        show(f"memcalc: {_NOT_COMPUTED.format(at=at)}\n")


_by_number: list[str] = []
"""The error that ended it, where that may come of numbers that are made up here."""
_NO_NUMBER = re.compile(r"math domain|expected a positive|expected a nonnegative|NaN|infinity")
"""In Python's words, to 3.14, of numbers that a function does not take."""
_NOT_COMPUTED = (
    "numbers that a GPU would compute are made up here{at}: if one causes this error, skip that "
    "line where MEMCALC_SIMULATED is set in the environment."
)


def _run_to_end(request: Request, session: Session) -> Ending:
    """Run the program until it ends, fails or made enough steps; return how it ended."""
    if (refusal := simulated_gpu.kernel_refusal()) is not None:
        show(f"memcalc: {refusal}\n")
        return Ending(code=1)
    # What was imported until here stays: nobody needs to look for garbage in it.
    gc.freeze()
    gc.enable()
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
            _raised.update(_serialize_error(error))
            lacks = stand_ins.lacking(error)
            return Ending(code=1, out_of_memory=_memory_error(error), lacks=lacks)
        return _report_error(error)
    return Ending(code=0)


def _report_error(error: BaseException) -> Ending:
    """Print the error that ended a program, and advice; return its exit code with the reason."""
    if isinstance(error, KeyboardInterrupt):
        return Ending(code=_INTERRUPTED)
    if isinstance(error, ChildDeathError):
        end_children()
        return Ending(code=1)
    if isinstance(error, EndlessWaitError | EstimateError):
        show(f"memcalc: {error}\n")
        return Ending(code=1)
    if isinstance(error, SystemExit):
        return Ending(code=_get_exit_code(error))
    lacks = stand_ins.lacking(error)
    if lacks:
        # It is run again, and ends like this no more.
        return Ending(code=1, lacks=lacks)
    _show_traceback(error)
    of_a_number = isinstance(error, ValueError) and _NO_NUMBER.search(format_error(error))
    if of_a_number or isinstance(error, ZeroDivisionError | OverflowError):
        _by_number.append(format_error(error))
    helps = advice(error)
    if not helps and isinstance(error, ModuleNotFoundError) and error.name:
        way = stand_ins.how_to_install([error.name])
        module = error.name.partition(".")[0]
        helps = f"{way}." if way else _OTHER_PYTHON.format(pip_line([module], sys.executable))
    if helps:
        show(f"memcalc: {helps}\n")
    return Ending(code=1, out_of_memory=_memory_error(error))


def _memory_error(error: BaseException) -> str:
    """Return the text of a CUDA out-of-memory error; empty: another error."""
    return format_error(error) if isinstance(error, torch.cuda.OutOfMemoryError) else ""


_OTHER_PYTHON = (
    "type {}, or name the Python that has it, as in memcalc simulate --python $(which python) -- "
    "python train.py."
)
_raised: dict[str, str] = {}
"""The error of a function that ran in place of a program, for the process that sent it."""


def _serialize_error(error: BaseException) -> dict[str, str]:
    trace = "".join(traceback.format_exception(error))
    found = {"kind": type(error).__name__, "text": format_error(error), "trace": trace}
    with contextlib.suppress(Exception):
        found["error"] = base64.b64encode(pickle.dumps(error)).decode()
    return found


def _make_answer(session: Session, request: Request, ending: Ending) -> Answer:
    traces, refusal = session.make_traces(request.program.name)
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


def _get_exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    show(f"{format_error(error.code)}\n")
    return 1


def _show_traceback(error: BaseException) -> None:
    """Print the program's traceback; where memory ran out, the user's own frames alone."""
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
    show("".join(shown.format()))
