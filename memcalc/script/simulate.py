"""Runs a user's program over the stub driver in a fresh process and reads its memory."""

import base64
import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from memcalc.allocator.outside import context_span
from memcalc.allocator.settings import VARIABLES, check_environment
from memcalc.catalog import gpus
from memcalc.catalog.gpus import Gpu
from memcalc.catalog.plan import make
from memcalc.children import command
from memcalc.children.exit_reason import ending, oom_kills
from memcalc.engine import driver, environment, simulated_gpu
from memcalc.engine.cudnn import loading
from memcalc.engine.environment.search import Environment
from memcalc.engine.stub import build
from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.estimate import Traced, keep
from memcalc.estimation.question import Asked, asked
from memcalc.estimation.replays import UNLIMITED
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.records.plan import Plan
from memcalc.script import checkpoint_marks, set_aside
from memcalc.script.answer import answered, as_it_ended
from memcalc.script.command import Program, launched
from memcalc.script.launchers import Launch
from memcalc.script.protect import settle
from memcalc.script.records import ANSWER, REQUEST, Answer, Ending, Request

STEPS = 3
"""Optimizer steps after which a program is stopped, unless others are asked for."""
_CARRIED = 8 << 20
"""Bytes of the largest copy to the GPU whose values are kept."""
_ALONE = (
    "the script uses {used} of {count} GPUs; to use all, put torchrun --nproc-per-node {count} "
    "before it in place of python"
)
_BEGINS = """
import os, sys
sys.path[:] = [*filter(None, sys.path), {home!r}]
try:
    from pathlib import Path
    from memcalc.script.protect import protect
    shared = Path(sys.argv[1])
    protect(shared, [sys.executable, *sys.orig_argv[1:]])
    try:
        from memcalc.script.child import main
    except ImportError as error:
        (shared / {failure!r}).write_text(f"PyTorch cannot be loaded: {{error}}.")
        sys.exit(1)
    main(shared)
except KeyboardInterrupt:
    os._exit(130)
except FileNotFoundError as error:
    if error.filename is None:
        sys.exit(1)
    raise
"""
"""Without the current folder: a program elsewhere imports nothing from it, and nor does PyTorch."""
_FAILURE = "failure"
"""A file in the shared folder with a sentence: why the process did not get to the program."""
_HOME = str(Path(__file__).resolve().parents[2])


class _Card(NamedTuple):
    """What a process finds of its GPU, in bytes."""

    kept: int
    """What the driver keeps of the card, which NVML counts and CUDA does not offer."""
    outside: int
    """What the process holds outside the allocator."""
    room: int
    """What the allocator may take."""


def _card(gpu: Gpu | None) -> _Card:
    """A named GPU has the room that its context leaves; without one nothing is ever full."""
    context = context_span(gpu)
    outside = context.likely if context.likely is not None else context.low
    if gpu is None:
        return _Card(0, outside, UNLIMITED)
    return _Card((gpu.nvml_memory or gpu.memory) - gpu.memory, outside, gpu.memory - outside)


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended, and what it took of the GPU."""

    ending: Ending
    traced: Traced | None
    """``None``: it never used the GPU."""


def simulate(
    plan: Plan,
    folder: Path | None = None,
    *,
    weights: bool = False,
    python: str | None = None,
    quiet: bool = False,
) -> Simulated:
    """Run the program of a plan; what it prints goes to standard error.

    Where its memory runs out on the plan's GPU, it runs once more without a limit: that tells what
    it needs in all.

    Args:
        plan: its command, and the GPU.
        folder: where to run it; ``None``: here.
        weights: are fetched where they are not on this machine.
        python: the Python that runs it; ``None``: this one.
        quiet: what it prints is not shown.

    Raises:
        UsageError: the command cannot be understood.
        EstimateError: the process died, or there is no PyTorch with CUDA.
    """
    folder = Path.cwd() if folder is None else folder
    program, launch = launched(plan, folder)
    gpu = gpus.find(plan.gpu) if plan.gpu is not None else None
    run = _Run(asked(plan), program, launch, folder, weights, python or sys.executable)
    found = run.answer(limited=gpu is not None, quiet=quiet)
    refusal = found.ending.refusal
    if found.ending.out_of_memory and refusal is not None:
        whole = run.answer(limited=False, again=True)
        if whole.traced is not None and not whole.ending.code:
            found = replace(found, traced=whole.traced)
        else:
            last = replace(refusal, last=True)
            found = replace(found, ending=replace(found.ending, refusal=last))
    if found.traced is not None:
        room = _card(gpu).room if gpu is not None else None
        traced = as_it_ended(found.traced, found.ending, room)
        keep(traced)
        found = replace(found, traced=traced)
    return found


def run_work(question: Asked, work: bytes) -> tuple[Traced | None, BaseException | None]:
    """Call a pickled function over the stub driver; returns what it took, and what it raised.

    Raises:
        EstimateError: the process died, or there is no PyTorch with CUDA.
    """
    program = Program(module=question.plan.name)
    run = _Run(question, program, None, Path.cwd(), False, sys.executable, work)
    found = run.answer(limited=question.gpu is not None)
    traced = found.traced
    if traced is not None and run.raised is not None:
        traced = as_it_ended(traced, found.ending, room=None)
    return traced, run.raised


class _Run:
    """A program that can be run several times; arguments as for ``simulate``."""

    def __init__(
        self,
        question: Asked,
        program: Program,
        launch: Launch | None,
        folder: Path,
        weights: bool,
        python: str,
        work: bytes = b"",
    ) -> None:
        self._work = work
        self.raised: BaseException | None = None
        """By the function that ran in place of a program."""
        self._of_files: tuple[str, ...] = ()
        """What is assumed because of the files that it wrote or changed."""
        self._question, self._program, self._launch = question, program, launch
        self._folder, self._weights, self._python = folder, weights, python

    def answer(self, *, limited: bool, quiet: bool = False, again: bool = False) -> Simulated:
        """Run it in a process of its own, limited to the GPU's memory or not.

        What it does when it runs ``again`` was seen before: it shows nothing, and keeps no files.
        """
        environment = self._environment(limited=limited)
        with command.own_folder() as folder:
            shared = folder / "shared"
            shared.mkdir()
            request, work = self._request(), shared / "work"
            if self._work:
                work.write_bytes(self._work)
                request = replace(request, work=str(work), path=tuple(sys.path))
            (shared / REQUEST).write_bytes(msgspec.json.encode(request))
            kills = oom_kills()
            done = self._run(shared, environment, quiet=quiet or again)
            of_files = settle(shared, again=again)
            if not again:
                self._of_files = of_files
            answered = shared / ANSWER
            answer = answered.read_bytes() if answered.exists() else b""
            failure = shared / _FAILURE
            if failure.exists():
                raise EstimateError(failure.read_text())
        if not answer:
            name = "process of the program"
            raise EstimateError(ending(name, done.returncode, kills=kills))
        return self._understood(answer)

    def _run(
        self, shared: Path, environment: dict[str, str], *, quiet: bool
    ) -> subprocess.CompletedProcess[str]:
        out, err = (subprocess.DEVNULL,) * 2 if quiet else (_stderr(), None)
        if self._work:
            out = err = subprocess.PIPE
        elif not quiet and sys.stderr is not sys.__stderr__ and sys.stderr.isatty():
            # A line moves at the terminal: what keeps it there writes what the program prints.
            out, err = subprocess.PIPE, subprocess.STDOUT
        try:
            done = command.run(
                [self._python, "-c", _BEGINS.format(home=_HOME, failure=_FAILURE), str(shared)],
                shared.parent,
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
        except OSError as error:
            raise EstimateError(f"{self._python} cannot be started: {error}.") from None
        seen = sys.stdout if self._work else sys.stderr
        print(done.stdout or "", end="", file=seen, flush=True)
        print(done.stderr or "", end="", file=sys.stderr, flush=True)
        return done

    def _request(self) -> Request:
        program = self._program
        said = list(self._question.notes)
        if self._launch is not None and self._launch.assumed:
            said.append(self._launch.assumed)
        if self._launch is not None and self._launch.world > 1:
            said.append(
                f"this is rank 0 of {self._launch.world}; other ranks are not run, and their "
                f"messages are assumed to have arrived"
            )
        if program.left_out:
            said.append(f"Python's own options are left out: {', '.join(program.left_out)}")
        return Request(
            program=program,
            steps=self._question.plan.steps or 0,
            gpus=self._question.plan.devices,
            launched=self._launch is not None,
            weights=self._weights,
            said=tuple(said),
        )

    def _environment(self, *, limited: bool) -> dict[str, str]:
        """Variables of the process: the stub driver, the GPU, and caches of the simulation."""
        question, plan = self._question, self._question.plan
        told = _card(question.gpu)
        room = told.room if limited else UNLIMITED
        local = self._launch.local if self._launch is not None else None
        # A process that a launcher starts has a GPU of its own, and sees that alone.
        devices = plan.devices if local is None or plan.devices > local else 1
        engine = self._engine()
        root, cuda = (Path(engine.root), engine.cuda) if engine else driver.installed(self._python)
        prepared = stub.prepare(root, cuda, (*engine.path, *sys.path) if engine else ())
        found = {name: value for name, value in os.environ.items() if name != _VISIBLE}
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
            set_aside.LIBRARY: str(prepared.library.with_name(build.FILE_GUARD)),
            "MEMCALC_STUB_KEPT": str(told.kept),
            "MEMCALC_STUB_OUTSIDE": str(told.outside),
            "MEMCALC_STUB_DEVICES": str(devices),
            "MEMCALC_STUB_CARRIED": str(_CARRIED),
            **(self._launch.environment(0) if self._launch is not None else {}),
        }
        if plan.alloc_conf:
            found[VARIABLES[0]] = plan.alloc_conf
        check_environment(found)
        return found

    def _engine(self) -> Environment | None:
        """The environment with the releases that the plan names; ``None``: it names none."""
        plan = self._question.plan
        if plan.torch is None and plan.transformers is None:
            return None
        if self._python != sys.executable:
            raise UsageError(
                "--python runs the PyTorch that it has: leave --torch out, or --python."
            )
        return environment.find(plan.torch, plan.transformers)

    def _understood(self, data: bytes) -> Simulated:
        try:
            answer = msgspec.json.decode(data, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EstimateError(f"The simulated run's answer cannot be read: {error}.") from None
        # A program's own process may put anything there; a function is the caller's own code.
        if self._work and answer.raised:
            self.raised = _raised(answer.raised)
        try:
            traces = {gpu: unpack(data) for gpu, data in answer.traces.items()}
        except DamagedTraceError as error:
            raise EstimateError(f"The simulated run's answer cannot be read: {error}.") from None
        traced = answered(self._question, traces, answer.state)
        count = self._question.plan.devices
        one_of_many = any(max(trace.groups, default=1) > 1 for trace in traces.values())
        launched = one_of_many or self._launch is not None
        if traced is not None and len(traces) < count and not launched:
            traced = _assuming(traced, _ALONE.format(used=len(traces), count=count))
        if traced is not None:
            traced = _assuming(traced, *self._of_files)
        return Simulated(ending=answer.ending, traced=traced)


def _assuming(traced: Traced, *assumed: str) -> Traced:
    told = (*assumed, *traced.prediction.assumptions)
    return replace(traced, prediction=replace(traced.prediction, assumptions=told))


def _stderr() -> int:
    """Standard output of a command is its answer; what a program prints goes beside it."""
    try:
        return sys.stderr.fileno()
    except (ValueError, OSError, AttributeError):
        return subprocess.DEVNULL  # Closed, or no file.


_VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Says which of this machine's own GPUs are seen, which are not those of a simulated one."""


def _raised(kept: dict[str, str]) -> BaseException:
    """What a function raised in the other process, with its traceback there as a note."""
    error: BaseException
    try:
        error = pickle.loads(base64.b64decode(kept["error"]))
    except Exception:
        error = EstimateError(f"{kept['kind']}: {kept['text']}")
    error.add_note(kept["trace"])
    return error


def plan_of(command: Sequence[str], **settings: Any) -> Plan:
    """A plan that runs a command; settings that are ``None`` are left out.

    Raises:
        UsageError: a setting makes no sense.
    """
    return make({"steps": STEPS, **settings, "command": shlex.join(command)})
