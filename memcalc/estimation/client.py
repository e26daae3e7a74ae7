"""Asks a child process to run plans; each of its failures becomes one sentence."""

import atexit
import base64
import contextlib
import math
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from memcalc.catalog import models
from memcalc.children import variables
from memcalc.children.client import WARM, Child, Parent
from memcalc.engine import driver, environment, replay, simulated_gpu
from memcalc.errors import EstimateError, MemcalcError, took_too_long
from memcalc.estimation.fits import Device
from memcalc.estimation.question import asked, code_in
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.records.levels import Levels
from memcalc.records.model import Inventory
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, Prediction
from memcalc.records.replay import Play
from memcalc.records.trace import Trace

T = TypeVar("T")


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of one run, and whether it fits each of some devices."""

    peaks: Levels
    """In bytes."""
    fits: tuple[Fit, ...]
    seq: int | None
    """Tokens per sample that were settled on; ``None``: the model takes no tokens."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()


_IDLE = 300.0
"""Seconds after which idle warm processes are ended."""
_IDLE_GPUS = 2
"""Processes that are kept for one GPU each; one takes 0.4 GB."""


class _Runs(NamedTuple):
    """What a process runs."""

    torch: str | None = None
    """Release; ``None``: the installed one."""
    transformers: str | None = None
    users_code: bool = False
    """Code of the user's own, which finds the shell's own variables."""
    compiles: bool = False
    """It needs the Triton of its PyTorch."""
    flash_attn: bool = False
    """It asks for flash-attn, for which its process may have a stand-in."""

    @staticmethod
    def of(plan: Plan) -> "_Runs":
        """Return what a plan runs."""
        own = code_in(plan) is not None
        # The installed PyTorch comes with its Triton.
        compiles = plan.torch is not None and (plan.compile is not None or plan.liger)
        asks = plan.attention == FLASH_ATTN
        return _Runs(plan.torch, plan.transformers, own, compiles, asks)


ENGINE = "-engine"
"""The kind of process that has opened the stub driver."""
_ENVIRONMENT = {
    # Whoever asks for a GPU while packages are imported asks NVML, and not CUDA.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class Engines(contextlib.AbstractContextManager["Engines"]):
    """Processes that have opened the stub driver, one for each PyTorch; threads may share them.

    A process starts when a child is first asked for.
    """

    def __init__(self) -> None:
        self._parents: dict[_Runs, Parent] = {}
        self._idle: list[tuple[tuple[_Runs, Mapping[str, str]], Parent]] = []
        """Those that were lent, and what they started with."""
        self._lock = threading.Lock()
        self.closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(
        self,
        torch: str | None = None,
        transformers: str | None = None,
        *,
        users_code: bool = False,
        compiles: bool = False,
        gpu: Mapping[str, str] | None = None,
    ) -> Parent:
        """The process that runs these releases; ``None``: the installed ones.

        ``users_code``: it runs code of the user's own, which finds the shell's own variables.
        ``compiles``: it needs the Triton of its PyTorch.
        ``gpu``: settings of the GPU that it starts with, if it has not started.

        Raises:
            SettingError: a release is not understood, or is too old.
            EstimateError: it cannot be had for this machine.
        """
        key = _Runs(torch, transformers, users_code, compiles)
        with self._lock:
            if key not in self._parents:
                self._parents[key] = _parent(key, gpu or {})
                if self.closed:
                    self._parents[key].close()
            return self._parents[key]

    def lend(self, runs: _Runs, gpu: Mapping[str, str]) -> Parent:
        """The process that started with this GPU and is lent to one client alone."""
        with self._lock:
            for number, (known, parent) in enumerate(self._idle):
                if known == (runs, gpu):
                    del self._idle[number]
                    return parent
        # Not the process that tests keep warm: it started with another.
        return _parent(runs, {**gpu, WARM: ""})

    def take_back(self, runs: _Runs, gpu: Mapping[str, str], parent: Parent) -> None:
        """Keep a process that was lent for who asks next; the oldest of several ends."""
        with self._lock:
            self._idle.append(((runs, gpu), parent))
            while len(self._idle) > (0 if self.closed else _IDLE_GPUS):
                self._idle.pop(0)[1].close()

    def close(self) -> None:
        """Leave no process behind."""
        with self._lock:
            self.closed = True
            for parent in (*self._parents.values(), *(parent for _, parent in self._idle)):
                parent.close()
            self._idle.clear()


class WarmEngines:
    """The engines of all that this process asks: the second question imports nothing.

    They end with the process, or after ``_IDLE`` seconds in which nobody asked.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew without ending the processes: a forked process does not own them."""
        self._lock = threading.Lock()
        self._engines = Engines()
        self._variables: dict[str, str] = {}
        self._askers = 0
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Engines:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            changed = self._variables != os.environ
            if self._engines.closed or (changed and not self._askers):
                self._engines.close()
                self._engines, self._variables = Engines(), dict(os.environ)
            self._askers += 1
            return self._engines

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._askers -= 1
            if not self._askers:
                self._timer = threading.Timer(_IDLE, self._engines.close)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Leave no process behind."""
        self._engines.close()


warm_engines = WarmEngines()
atexit.register(warm_engines.close)
os.register_at_fork(after_in_child=warm_engines.forget)


def player(plan: Plan | None = None) -> Play:
    """Return what replays calls in a child process, by the PyTorch of a plan, or the installed one.

    It raises ``EstimateError`` where there is no PyTorch with CUDA.
    """
    runs = (plan.torch, plan.transformers) if plan is not None else ()

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        with warm_engines as engines:
            child = engines.of(*runs).child(replay.__name__, replay.NAME)
            try:
                return child.ask(request)
            finally:
                child.end()

    return replay.through(ask)


def _parent(runs: _Runs, gpu: Mapping[str, str]) -> Parent:
    found = environment.find(runs.torch, runs.transformers)
    told = {driver.ENVIRONMENT: msgspec.json.encode(found).decode()} if found.path else {}
    # Nothing is compiled here: as it is imported, Inductor shall make no folder.
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    told["TORCHINDUCTOR_CACHE_DIR"] = inductor
    own = (variables.without_settings if runs.users_code else variables.composed)(os.environ)
    own |= {**gpu, **_ENVIRONMENT, **told}
    return Parent(EstimateError, own, kind=ENGINE, first=found.path)


class Client(contextlib.AbstractContextManager["Client"]):
    """A child process that runs one plan after the other; started when it is first asked.

    A crash takes one plan with it: the next one is asked of a fresh child.
    """

    def __init__(self, engines: Engines | None = None, timeout: float = math.inf) -> None:
        """Ask nothing yet; without engines the client has its own.

        ``timeout``: seconds after which a run is ended.
        """
        self._timeout = timeout
        self._own = engines is None
        self._engines = engines or Engines()
        self._child: Child | None = None
        self._runs = _Runs()
        self._parent: Parent | None = None
        """Of a child whose imports ask for the GPU: it started with that of one plan."""
        self._gpu: dict[str, str] = {}

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()
        self._give_back()
        if self._own:
            self._engines.close()

    def ask(
        self, plan: Plan, *, counted: bool = False, figures: bool = False
    ) -> Prediction | MemcalcError:
        """Run one plan; ``counted``: and one step more, for its floating-point operations.

        ``figures``: the ladder is enough, and scratch of kernels may count as temporary.
        """
        return self._decoded(Prediction, "prediction", plan, counted=counted, figures=figures)

    def trace(self, plan: Plan) -> tuple[Prediction, Trace] | MemcalcError:
        """Trace one plan, and keep the events."""
        answer = self._answer(plan, keep=True)
        if isinstance(answer, MemcalcError):
            return answer
        try:
            trace = unpack(base64.b64decode(answer["trace"]))
        except DamagedTraceError as error:
            return EstimateError(f"The simulated run's answer cannot be read: {error}.")
        return decode(Prediction, answer["prediction"]), trace

    def judged(
        self, plan: Plan, devices: Sequence[Device], lengths: Sequence[int] = ()
    ) -> Judged | MemcalcError:
        """Run one plan, over batches of these lengths if any, and see which devices it fits."""
        told = [encode(device) for device in devices]
        return self._decoded(Judged, "judged", plan, devices=told, lengths=list(lengths))

    def inventory(self, plan: Plan) -> Inventory | MemcalcError:
        """The tensors of a plan's model, and of its adapters where it has some."""
        return self._decoded(Inventory, "inventory", plan, inventory=True)

    def _decoded(self, kind: type[T], key: str, plan: Plan, **more: Any) -> T | MemcalcError:
        answer = self._answer(plan, **more)
        return answer if isinstance(answer, MemcalcError) else decode(kind, answer[key])

    def _answer(self, plan: Plan, **more: Any) -> dict[str, Any] | MemcalcError:
        request = {"plan": encode(plan), **more}
        try:
            answer = self._child_of(plan).ask(request, timeout=self._timeout)
            if "another_gpu" in answer:
                child = self._child_of(plan, with_gpu=True)
                answer = child.ask(request, timeout=self._timeout)
            return answer
        except TimeoutError:
            return EstimateError(took_too_long("simulated run", self._timeout))
        except MemcalcError as error:
            return error

    def _child_of(self, plan: Plan, *, with_gpu: bool = False) -> Child:
        """The child that a plan is asked of; ``with_gpu``: one that starts with the plan's GPU."""
        runs, gpu = _Runs.of(plan), _gpu_of(plan)
        other = self._runs != runs or (self._parent is not None and self._gpu != gpu)
        if self._child is not None and (other or with_gpu):
            self._child.end()
        if self._child is None or not self._child.alive:
            if other or with_gpu:
                self._give_back()
            self._runs, self._gpu = runs, gpu
            if with_gpu:
                self._parent = self._engines.lend(runs, gpu)
            parent = self._parent or self._engines.of(
                runs.torch,
                runs.transformers,
                users_code=runs.users_code,
                compiles=runs.compiles,
                gpu=gpu,
            )
            self._child = parent.child(
                "memcalc.estimation.child",
                "simulated run",
                hint=models.find(plan.model).model_type,
            )
        return self._child

    def _give_back(self) -> None:
        parent, self._parent = self._parent, None
        if parent is not None:
            self._engines.take_back(self._runs, self._gpu, parent)


def _gpu_of(plan: Plan) -> dict[str, str]:
    """Settings of a plan's GPU, by which imports see it."""
    question = asked(plan)
    return {} if plan.target == "cpu" else simulated_gpu.settings(question.gpu, question.target)
