"""A process that runs a user's program over the stub driver, and its answer."""

from __future__ import annotations

import base64
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from memcalc.children import bring, command, variables
from memcalc.children.child import show
from memcalc.children.exit_reason import ending, oom_kills
from memcalc.engine import driver, environment, simulated_gpu
from memcalc.engine.alloc_conf import VARIABLES, check_environment
from memcalc.engine.cudnn import loading
from memcalc.engine.environment.search import Environment
from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError, UsageError, took_too_long
from memcalc.estimation.card import card_memory
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import ResolvedPlan
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.files.untrusted_values import reason
from memcalc.records.replay import UNLIMITED
from memcalc.script import checkpoint_marks, failure, opened
from memcalc.script.answer import Simulated, predict_gpus
from memcalc.script.command import Program
from memcalc.script.launchers import Launch
from memcalc.script.opened import Opened
from memcalc.script.protect import settle
from memcalc.script.records import ANSWER, REQUEST, USUAL, Answer, RankAnswers, Request, Way
from memcalc.script.serving import predict_served
from memcalc.script.streams import stderr_or_nothing

_DIGITS = 4
"""Digits that no GPU's number on a machine has."""
_CARRIED = 8 << 20
"""Bytes of the largest copy to the GPU whose values are kept."""
_ALONE = (
    "the script uses {used} of {count} GPUs; to use all, put torchrun --nproc-per-node {count} "
    "before it in place of python"
)
_BEGINS = """
import gc, os
gc.disable()  # until the program begins: what is imported stays
# A program elsewhere imports nothing from the current folder, and nor does PyTorch.
sys.path[:] = filter(None, sys.path)
try:
    from pathlib import Path
    from memcalc.script import failure
    from memcalc.script.protect import protect
    shared = Path(sys.argv[1])
    protect(shared)
    try:
        from memcalc.script.child import main
    except Exception as error:
        # A variable such as TORCH_LOGS that PyTorch does not understand is a ValueError.
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        failure.leave(shared, f"PyTorch cannot be loaded: {said}.")
        sys.exit(1)
    main(shared)
except KeyboardInterrupt:
    os._exit(130)
except FileNotFoundError as error:
    if error.filename is None:
        sys.exit(1)
    raise
"""


class Ran(NamedTuple):
    """The use of the GPU by rank; a program that trains alone is the first."""

    found: dict[int, Simulated]
    answers: RankAnswers | None = None
    """``None``: no ranks were asked for."""


class Run:
    """A program that can be run several times; arguments as for ``simulate``."""

    def __init__(
        self,
        question: ResolvedPlan,
        program: Program,
        launch: Launch | None,
        folder: Path,
        work: bytes = b"",
    ) -> None:
        self._work = work
        self.follows_values = self.uses_cudnn = True
        self.timeout = math.inf
        """Seconds after which a run is ended."""
        self.stand_ins: tuple[str, ...] = ()
        """Packages that the program asked for, in whose place memcalc has something."""
        self.raised: BaseException | None = None
        """By the function that ran in place of a program."""
        self._of_files: tuple[str, ...] = ()
        """Assumptions on the files that it wrote or changed."""
        self.opened = Opened()
        """What its runs have read so far."""
        self._question, self._program, self._launch = question, program, launch
        self._folder, self._python = folder, question.plan.python or sys.executable

    def ranks(
        self,
        *,
        limited: bool,
        quiet: bool = False,
        again: bool = False,
        way: Way = USUAL,
        rank: int | str | None = None,
    ) -> Ran:
        """Run the program once in a new process; return its memory on the GPU, by rank.

        Args:
            limited: memory is no larger than the GPU's.
            quiet: what it prints is not shown.
            again: what it does was seen before: it shows nothing, and keeps no files.
            way: what numbers that are not computed decide.
            rank: which process, in place of those that the plan asks for.

        Raises:
            EstimateError: it died, or took too long.
        """
        environment = self._environment(limited=limited)
        with command.own_folder() as folder:
            shared = folder / "shared"
            request = self._make_request(rank, shared / "serving", way)
            try:
                self._write_request(request, shared)
            except OSError as error:
                raise EstimateError(failure.NO_ROOM.format(folder, reason(error))) from None
            kills = oom_kills()
            done = self._run(shared, environment, quiet=quiet or again)
            of_files = settle(shared, again=again)
            self.opened = opened.read(shared / opened.FILE, self.opened)
            if not again:
                self._of_files = of_files
            answer = failure.read_file(shared / ANSWER)
            if why := failure.read(shared):
                raise EstimateError(why)
        if not answer:
            name = "process of the program"
            raise EstimateError(ending(name, done.returncode, kills=kills))
        return self._decode_answer(answer, one_of_many=request.one_of_many)

    def _decode_answer(self, answer: bytes, *, one_of_many: bool) -> Ran:
        """Decode the answer that a run's process wrote, for one process or for all ranks."""
        try:
            if not one_of_many:
                one = msgspec.json.decode(answer, type=Answer)
                # A function is the caller's own code.
                self.raised = _rebuild_error(one.raised) if self._work and one.raised else None
                return Ran({0: self._predict_process(one, None)})
            answers = msgspec.json.decode(answer, type=RankAnswers)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EstimateError(f"The simulated run's answer cannot be read: {error}.") from None
        if answers.refusal:
            raise (UsageError if answers.refused else EstimateError)(answers.refusal)
        found = {
            rank: self._predict_process(one, rank if answers.world > 1 else None)
            for rank, one in answers.answers.items()
        }
        return Ran(found, answers)

    def _write_request(self, request: Request, shared: Path) -> None:
        """Make the shared folder of a run, and write the request into it."""
        shared.mkdir()
        failure.make_room(shared)
        if self._work:
            work = shared / "work"
            work.write_bytes(self._work)
            request = replace(request, work=str(work), path=tuple(sys.path))
        (shared / REQUEST).write_bytes(msgspec.json.encode(request))

    def with_stand_ins(self, *, limited: bool, quiet: bool = False) -> Ran:
        """Run the program; if it lacks a package that has a stand-in, rerun it with that."""
        ran = self.ranks(limited=limited, quiet=quiet)
        while lacks := {one.ending.lacks for one in ran.found.values()} - {""}:
            self.stand_ins += tuple(sorted(lacks))
            ran = self.ranks(limited=limited, quiet=quiet)
        return ran

    def _run(
        self, shared: Path, environment: dict[str, str], *, quiet: bool
    ) -> subprocess.CompletedProcess[str]:
        """Start the process of a run, show what it prints, and wait for its end."""
        out, err = (subprocess.DEVNULL,) * 2 if quiet else (stderr_or_nothing(), None)
        if self._work:
            out = err = subprocess.PIPE
        elif not quiet and sys.stderr is not sys.__stderr__ and sys.stderr.isatty():
            # A line moves at the terminal: what keeps it there writes what the program prints.
            out, err = subprocess.PIPE, subprocess.STDOUT
        try:
            done = command.run(
                [self._python, "-c", bring.code() + _BEGINS, str(shared)],
                shared.parent,
                timeout=None if self.timeout == math.inf else self.timeout,
                cwd=self._folder,
                env={
                    **environment,
                    stub.PROCESSES: str(shared / "processes"),
                    checkpoint_marks.FOLDERS: str(shared / checkpoint_marks.NOTED),
                },
                stdout=out,
                stderr=err,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise EstimateError(took_too_long("command", self.timeout)) from None
        except OSError as error:
            raise EstimateError(f"{self._python} cannot be started: {error}.") from None
        if self._work:
            print(done.stdout, end="", flush=True)
        else:
            show(done.stdout or "")
        show(done.stderr or "")
        return done

    def _make_request(self, rank: int | str | None, serving: Path, way: Way) -> Request:
        program = self._program
        said = list(self._question.assumptions)
        if self._launch is not None and self._launch.assumed:
            said.append(self._launch.assumed)
        if program.left_out:
            said.append(f"Python's own options are left out: {', '.join(program.left_out)}")
        return Request(
            program=program,
            steps=(self._question.plan.steps or 0) * way.longer,
            way=way,
            gpus=self._question.plan.devices,
            launch=self._launch,
            rank=self._question.plan.rank if rank is None else rank,
            world=self._launch.world if self._launch is not None else None,
            weights=self._question.plan.weights,
            said=tuple(said),
            serving=str(serving),
            stand_ins=self.stand_ins,
            follows_values=self.follows_values,
            uses_cudnn=self.uses_cudnn,
        )

    def _environment(self, *, limited: bool) -> dict[str, str]:
        """Return the variables of a run: for the stub driver, the GPU and the caches."""
        question, plan = self._question, self._question.plan
        told = card_memory(question.gpu)
        room = told.room if limited else UNLIMITED
        local = self._launch.local if self._launch is not None else None
        # A process that a launcher starts has a GPU of its own, and sees that alone.
        devices = plan.devices if local is None or plan.devices > local else 1
        # A launcher's variables in the shell name its GPU.
        own = os.environ.get("LOCAL_RANK", "")
        if local is None and own.isdecimal() and len(own) < _DIGITS:
            devices = max(devices, int(own) + 1)
        engine = self._find_engine()
        own_torch = (Path(engine.torch.root), engine.torch.cuda) if engine else None
        root, cuda = own_torch or driver.find_torch(self._python)
        prepared = stub.prepare(root, cuda, (*engine.path, *sys.path) if engine else ())
        found = variables.numbered_gpus(os.environ, devices)
        if engine:
            found = engine.variables(found)
            found[driver.ENVIRONMENT] = msgspec.json.encode(engine).decode()
        # Where memory runs out the answer says so, and PyTorch's own line of C++ need not.
        found.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        found |= {
            **dict(self._program.environment),
            **stub.environment(prepared),
            **loading.environment(driver.cudnn(question.target.capability, [root.parent])),
            **simulated_gpu.settings(question.gpu, question.target, room=room),
            **told.variables(),
            "MEMCALC_STUB_DEVICES": str(devices),
            "MEMCALC_STUB_CARRIED": str(_CARRIED),
            **(self._launch.environment(0) if self._launch is not None else {}),
        }
        if plan.alloc_conf:
            found[VARIABLES[0]] = plan.alloc_conf
        check_environment(found)
        return found

    def _find_engine(self) -> Environment | None:
        """Return the environment with the PyTorch and transformers that the plan names, or None."""
        plan = self._question.plan
        if plan.torch is None and plan.transformers is None:
            return None
        if self._python != sys.executable:
            raise UsageError(
                "--python runs the PyTorch that it has: leave --torch out, or --python."
            )
        return environment.find(plan.torch, plan.transformers)

    def _predict_process(self, answer: Answer, rank: int | None) -> Simulated:
        """Predict memory from the answer of one process; ``rank``: its number if one of many."""
        try:
            traces = {gpu: unpack(data) for gpu, data in answer.traces.items()}
        except DamagedTraceError as error:
            raise EstimateError(f"The simulated run's answer cannot be read: {error}.") from None
        one_of_many = any(max(trace.groups, default=1) > 1 for trace in traces.values())
        if (rank is not None or one_of_many) and len(traces) == 1:
            # The GPU of a process that has one, whatever its number on the machine.
            traces = dict.fromkeys((0,), *traces.values())
        traced = predict_gpus(self._question, traces, answer.state)
        count = self._question.plan.devices
        launched = one_of_many or self._launch is not None
        if traced is not None and len(traces) < count and not launched:
            traced = _add_assumptions(traced, _ALONE.format(used=len(traces), count=count))
        if traced is not None:
            traced = _add_assumptions(traced, *self._of_files)
        served = predict_served(answer, self._question.plan, self._question.gpu)
        return Simulated(ending=answer.ending, traced=traced, served=served)


def _add_assumptions(traced: Traced, *assumed: str) -> Traced:
    told = (*assumed, *traced.prediction.assumptions)
    return replace(traced, prediction=replace(traced.prediction, assumptions=told))


def _rebuild_error(kept: dict[str, str]) -> BaseException:
    """Unpickle the error of a function in the other process, with its traceback as a note."""
    error: BaseException
    try:
        error = pickle.loads(base64.b64decode(kept["error"]))
    except Exception:
        error = EstimateError(f"{kept['kind']}: {kept['text']}")
    error.add_note(kept["trace"])
    return error
