"""Runs plans over the stub driver, in forks of warm processes."""

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

from memcalc.children import variables
from memcalc.children.client import ForkServer
from memcalc.engine import driver, environment, replay, simulated_gpu
from memcalc.errors import EstimateError, took_too_long
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import ResolvedPlan, find_user_code, look_up
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.records.model import Inventory
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.replay import Play

T = TypeVar("T")
JOB = "memcalc.estimation.child"
"""The job module that runs plans."""
RUN = "simulated run"
"""The name in sentences of a fork that runs a plan."""
_IDLE = 300.0
"""Seconds after which idle fork servers are ended."""
_KEPT = 3
"""Idle fork servers that are kept for the next question; each takes 0.4 GB."""
_LOOP_MODULES = {"trainer": ("peft", "transformers.trainer"), "accelerate": ("accelerate",)}
"""Modules that training loops import, with bitsandbytes."""
_ENVIRONMENT = {
    # Imports that look for a GPU then ask NVML, and not CUDA.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class Releases(NamedTuple):
    """The releases and code that a fork server has loaded."""

    torch: str | None = None
    """Release, or None for the installed one."""
    transformers: str | None = None
    users_code: bool = False
    """True for the user's own code, which gets all variables of the shell."""
    flash_attn: bool = False
    """True if flash-attn is used, for which the process may have a stand-in."""

    @staticmethod
    def from_plan(plan: Plan) -> "Releases":
        """Return the PyTorch and transformers releases that a plan runs with."""
        own = find_user_code(plan) is not None
        asks = plan.attention == FLASH_ATTN
        return Releases(plan.torch, plan.transformers, own, asks)


class Engine:
    """The fork servers of this process, in whose forks plans run over the stub driver.

    A server starts with its first question, and ends with this process, or after ``_IDLE`` seconds
    without a question. Threads may share the engine.
    """

    def __init__(self) -> None:
        """Make an engine without servers."""
        self.forget()

    def forget(self) -> None:
        """Drop all servers without ending them: a forked process does not own them."""
        self._lock = threading.Lock()
        self._servers: dict[Any, ForkServer] = {}
        """Servers by their releases, environment and GPU, least recently used first."""
        self._askers: Counter[Any] = Counter()
        self._timer: threading.Timer | None = None

    def close(self) -> None:
        """End all servers."""
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def predict(self, plan: Plan, **how: Any) -> Prediction:
        """Predict one plan by a simulated run; arguments as in ``predict_together``."""
        return self.predict_together([plan], **how)[0]

    def predict_together(
        self,
        plans: Sequence[Plan],
        *,
        counted: bool = False,
        figures: bool = False,
        memory: int | None = None,
        lengths: Sequence[int] = (),
        follows_values: bool = True,
        uses_cudnn: bool = True,
        timeout: float = math.inf,
    ) -> list[Prediction]:
        """Run the first plan, and predict the others by replays of its run.

        Args:
            plans: they differ in GPUs that run the same kernels, and in settings of the allocator.
            counted: run one step more, for its floating-point operations.
            figures: the ladder is enough, and scratch of kernels may count as temporary.
            memory: bytes of the GPU, in place of its own.
            lengths: train on one batch of each of these lengths.
            follows_values: what the model reads from the GPU is followed; else it is all zeros.
            uses_cudnn: convolutions may run cuDNN.
            timeout: seconds after which the run is ended.

        Raises:
            MemcalcError: it cannot be answered.
        """
        plan, *others = plans
        request = {"counted": counted, "figures": figures, "memory": memory, "lengths": lengths}
        request |= {"follows_values": follows_values, "uses_cudnn": uses_cudnn}
        answer = self._run(plan, timeout, others=[encode(one) for one in others], **request)
        found = [answer["prediction"], *answer.get("others", ())]
        return [decode(Prediction, one) for one in found]

    def trace(self, plan: Plan, *, memory: int | None = None, timeout: float = math.inf) -> Traced:
        """Run one plan; return its prediction and allocation events."""
        answer = self._run(plan, timeout, keep=True, memory=memory)
        try:
            trace = unpack(decode(bytes, answer["trace"]))
        except DamagedTraceError as error:
            raise EstimateError(f"The simulated run's answer cannot be read: {error}.") from None
        return Traced(prediction=decode(Prediction, answer["prediction"]), trace=trace)

    def inventory(self, plan: Plan) -> Inventory:
        """Return the parameters and buffers of a plan's model and adapters; nothing is run."""
        return decode(Inventory, self._run(plan, math.inf, inventory=True)["inventory"])

    def player(self, plan: Plan | None = None) -> Play:
        """Return a function that replays allocator calls in forks with a plan's PyTorch.

        Without a plan it is the installed one. The function raises EstimateError without CUDA.
        """
        return replay.make_player(
            lambda request: self.ask(replay.__name__, replay.NAME, request, plan)
        )

    def ask(
        self, module: str, name: str, request: dict[str, Any], plan: Plan | None = None
    ) -> dict[str, Any]:
        """Call ``module.name`` with a request in a fork that has a plan's PyTorch.

        For ``module``, ``name`` and ``request`` see ``ForkServer.ask``.
        """
        own = Releases(plan.torch, plan.transformers) if plan is not None else Releases()
        with self._lend_server(own, {}, alone=False) as server:
            return server.ask(module, name, request)

    def _run(self, plan: Plan, timeout: float, **request: Any) -> dict[str, Any]:
        """Run a plan in a fork, and again with added fields while the answer asks for it."""
        question = look_up(plan)
        hint = (question.source.model_type, *_modules(question))
        gpu = {} if plan.target == "cpu" else simulated_gpu.settings(question.gpu, question.target)
        answer: dict[str, Any] = {"again": {"plan": encode(plan)}}
        while "again" in answer:
            request |= answer["again"]
            alone = bool(request.get("alone"))
            with self._lend_server(Releases.from_plan(plan), gpu, alone=alone) as server:
                try:
                    answer = server.ask(JOB, RUN, request, hint=hint, timeout=timeout)
                except TimeoutError:
                    raise EstimateError(took_too_long(RUN, timeout)) from None
        return answer

    @contextlib.contextmanager
    def _lend_server(
        self, releases: Releases, gpu: Mapping[str, str], *, alone: bool
    ) -> Iterator[ForkServer]:
        """Find or start a fork server and yield it; it is not closed before the block ends.

        ``gpu``: the settings of the GPU that a new server starts with; ``alone``: do not use a
        server that started with another GPU.
        """
        own = tuple(gpu.items()) if alone else None
        key = releases, tuple(sorted(os.environ.items())), own
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            server = self._servers.pop(key, None) or _make_server(releases, gpu, alone)
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


def _make_server(releases: Releases, gpu: Mapping[str, str], alone: bool) -> ForkServer:
    """Make a fork server with these releases and GPU settings; it starts when first asked."""
    found = environment.find(releases.torch, releases.transformers)
    added = {driver.ENVIRONMENT: msgspec.json.encode(found).decode()} if found.path else {}
    # Nothing is compiled here: the import of Inductor must not make a folder.
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    added["TORCHINDUCTOR_CACHE_DIR"] = inductor
    own = (variables.without_settings if releases.users_code else variables.select)(os.environ)
    own |= {**gpu, **_ENVIRONMENT, **added}
    return ForkServer(EstimateError, own, first=found.path)


def _modules(question: ResolvedPlan) -> tuple[str, ...]:
    """Return the packages that a plan's run on a GPU imports, to be imported before the fork."""
    plan = question.plan
    if plan.target == "cpu":
        return ()
    used = _LOOP_MODULES.get(plan.loop, ())
    if plan.adapters is not None:
        used = ("peft", *used)
    quantizes = plan.scheme is not None or question.choice.row.package == "bitsandbytes"
    return ("bitsandbytes", *used) if used or quantizes else ()
