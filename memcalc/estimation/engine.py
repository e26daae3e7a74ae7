"""Asks forks of warm processes to run plans over the stub driver."""

import atexit
import contextlib
import math
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from memcalc import registry
from memcalc.catalog import models
from memcalc.children import variables
from memcalc.children.client import WARM, ForkServer
from memcalc.engine import driver, environment, replay, simulated_gpu
from memcalc.errors import EstimateError, took_too_long
from memcalc.estimation.fits import Device
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import asked, code_in
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.records.levels import Levels
from memcalc.records.model import Inventory
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, Prediction
from memcalc.records.replay import Play

T = TypeVar("T")
JOB = "memcalc.estimation.child"
"""The job module that runs plans."""
RUN = "simulated run"
"""What a fork that runs a plan is called in sentences."""
KIND = "-engine"
"""The kind of fork server that has opened the stub driver."""
_IDLE = 300.0
"""Seconds after which fork servers that nobody asks are ended."""
_KEPT = 3
"""Fork servers that are kept for who asks next; one takes 0.4 GB."""
_OF_LOOPS = {"trainer": ("peft", "transformers.trainer"), "accelerate": ("accelerate",)}
"""What loops import, and with it bitsandbytes."""
_ENVIRONMENT = {
    # Whoever asks for a GPU while packages are imported asks NVML, and not CUDA.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The highest levels of one run, and whether it fits each of some devices."""

    peaks: Levels
    """In bytes."""
    fits: tuple[Fit, ...]
    seq: int | None
    """Tokens per sample that were settled on; ``None``: the model takes no tokens."""
    assumptions: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()


class Releases(NamedTuple):
    """What a fork server has loaded, and for what."""

    torch: str | None = None
    """Release; ``None``: the installed one."""
    transformers: str | None = None
    users_code: bool = False
    """Code of the user's own, which finds the shell's own variables."""
    flash_attn: bool = False
    """It asks for flash-attn, for which its process may have a stand-in."""

    @staticmethod
    def of(plan: Plan) -> "Releases":
        """Return what a plan runs with."""
        own = code_in(plan) is not None
        asks = plan.attention == FLASH_ATTN
        return Releases(plan.torch, plan.transformers, own, asks)


class Engine:
    """The fork servers of all that this process asks: the second question imports nothing.

    One starts when it is first asked, and ends with this process, or after ``_IDLE`` seconds in
    which nobody asked. Threads may share it.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self.forget()

    def forget(self) -> None:
        """Start anew without ending the servers: a forked process does not own them."""
        self._lock = threading.Lock()
        self._servers: dict[Any, ForkServer] = {}
        """By what they were started for; the one that was asked last is the last."""
        self._askers: Counter[Any] = Counter()
        self._timer: threading.Timer | None = None

    def close(self) -> None:
        """Leave no process behind."""
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def predict(self, plan: Plan, **how: Any) -> Prediction:
        """Run one plan; arguments and errors are those of ``predict_under``."""
        return self.predict_under(plan, (), **how)[0]

    def predict_under(
        self,
        plan: Plan,
        confs: Sequence[str],
        *,
        counted: bool = False,
        figures: bool = False,
        timeout: float = math.inf,
    ) -> list[Prediction]:
        """Run one plan, and answer it under other settings of the allocator by replays.

        Args:
            plan: what to run.
            confs: these other settings; each adds an answer.
            counted: run one step more, for its floating-point operations.
            figures: the ladder is enough, and scratch of kernels may count as temporary.
            timeout: seconds after which the run is ended.

        Raises:
            MemcalcError: it cannot be answered.
        """
        more = {"confs": list(confs)} if confs else {}
        answer = self._run(plan, timeout, counted=counted, figures=figures, **more)
        found = [answer["prediction"], *answer.get("others", ())]
        return [decode(Prediction, one) for one in found]

    def trace(self, plan: Plan, *, timeout: float = math.inf) -> Traced:
        """Run one plan, and keep the events; arguments and errors are those of ``predict``."""
        answer = self._run(plan, timeout, keep=True)
        try:
            trace = unpack(decode(bytes, answer["trace"]))
        except DamagedTraceError as error:
            raise EstimateError(f"The simulated run's answer cannot be read: {error}.") from None
        return Traced(prediction=decode(Prediction, answer["prediction"]), trace=trace)

    def judge(
        self,
        plan: Plan,
        devices: Sequence[Device],
        lengths: Sequence[int] = (),
        *,
        timeout: float = math.inf,
    ) -> Judged:
        """Run one plan, over batches of these lengths if any, and see which devices it fits."""
        told = [encode(device) for device in devices]
        answer = self._run(plan, timeout, devices=told, lengths=list(lengths))
        return decode(Judged, answer["judged"])

    def inventory(self, plan: Plan) -> Inventory:
        """Return the tensors of a plan's model, and of its adapters where it has some."""
        return decode(Inventory, self._run(plan, math.inf, inventory=True)["inventory"])

    def player(self, plan: Plan | None = None) -> Play:
        """Return what replays calls in forks, by the PyTorch of a plan, or the installed one.

        It raises ``EstimateError`` where there is no PyTorch with CUDA.
        """
        return replay.through(lambda request: self.ask(replay.__name__, replay.NAME, request, plan))

    def ask(
        self, module: str, name: str, request: dict[str, Any], plan: Plan | None = None
    ) -> dict[str, Any]:
        """Ask a fork of the server with a plan's PyTorch, or the installed one.

        ``module``, ``name`` and ``request`` are those of ``ForkServer.ask``.
        """
        own = Releases(plan.torch, plan.transformers) if plan is not None else Releases()
        with self._lend(own, {}, alone=False) as server:
            return server.ask(module, name, request)

    def _run(self, plan: Plan, timeout: float, **request: Any) -> dict[str, Any]:
        """Have a plan run, and again where the answer asks for that."""
        hint = (models.find(plan.model).model_type, *_modules(plan))
        answer: dict[str, Any] = {"again": {"plan": encode(plan)}}
        while "again" in answer:
            request |= answer["again"]
            alone = bool(request.get("alone"))
            with self._lend(Releases.of(plan), _gpu_of(plan), alone=alone) as server:
                try:
                    answer = server.ask(JOB, RUN, request, hint=hint, timeout=timeout)
                except TimeoutError:
                    raise EstimateError(took_too_long(RUN, timeout)) from None
        return answer

    @contextlib.contextmanager
    def _lend(
        self, releases: Releases, gpu: Mapping[str, str], *, alone: bool
    ) -> Iterator[ForkServer]:
        """Find or make a server; it is not ended while somebody asks it.

        ``gpu``: settings of the GPU that it starts with, if it has not started; ``alone``: none
        will do that has started with another.
        """
        own = tuple(gpu.items()) if alone else None
        key = releases, tuple(sorted(os.environ.items())), own
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            server = self._servers.pop(key, None) or _server(releases, gpu, alone)
            self._servers[key] = server
            self._askers[key] += 1
            idle = [one for one in self._servers if not self._askers[one]]
            for one in idle[: max(len(self._servers) - _KEPT, 0)]:
                self._servers.pop(one).close()
        try:
            yield server
        finally:
            with self._lock:
                self._askers -= Counter([key])
                if not self._askers:
                    self._timer = threading.Timer(_IDLE, self.close)
                    self._timer.daemon = True
                    self._timer.start()


engine = Engine()
atexit.register(engine.close)
os.register_at_fork(after_in_child=engine.forget)


def _server(releases: Releases, gpu: Mapping[str, str], alone: bool) -> ForkServer:
    found = environment.find(releases.torch, releases.transformers)
    told = {driver.ENVIRONMENT: msgspec.json.encode(found).decode()} if found.path else {}
    # Nothing is compiled here: as it is imported, Inductor shall make no folder.
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    told["TORCHINDUCTOR_CACHE_DIR"] = inductor
    own = (variables.without_settings if releases.users_code else variables.composed)(os.environ)
    own |= {**gpu, **_ENVIRONMENT, **told}
    if alone:
        own[WARM] = ""  # That of the tests started with another.
    return ForkServer(EstimateError, own, kind=KIND, first=found.path)


def _gpu_of(plan: Plan) -> dict[str, str]:
    """Return settings of a plan's GPU, by which imports see it."""
    question = asked(plan)
    return {} if plan.target == "cpu" else simulated_gpu.settings(question.gpu, question.target)


def _modules(plan: Plan) -> tuple[str, ...]:
    """Return the modules that a plan's run on a GPU imports and many runs have in common."""
    if plan.target == "cpu":
        return ()
    used = _OF_LOOPS.get(plan.loop, ())
    if plan.adapters is not None:
        used = ("peft", *used)
    quantizes = plan.scheme is not None or registry.of(plan).row.package == "bitsandbytes"
    return ("bitsandbytes", *used) if used or quantizes else ()
