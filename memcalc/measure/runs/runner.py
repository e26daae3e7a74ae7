"""Starts measured runs and joins their figures with NVML's readings."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.children import variables
from memcalc.children.client import ForkServer
from memcalc.errors import MeasureError, MeasureTimeoutError, took_too_long
from memcalc.files.artifact import decode, encode
from memcalc.measure.gpu.sampler import INTERVAL, Sampler
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan
from memcalc.records.trace import PhaseReading

_OF_THE_DEVICE = (
    *("CUDA_", "CUBLAS_", "NVIDIA_", "OMP_", "PYTORCH_", "TORCH_", "TRITON_"),
    "MEMCALC_",
)
"""How the names of variables begin that settle PyTorch and this machine's devices."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure."""

    device: str
    """``cuda`` or ``cpu``."""
    steps: int = 4
    weights: bool = False
    """Load real weights instead of random ones."""
    index: int = 0
    """Which of the GPUs that PyTorch sees."""
    snapshot: str | None = None
    """File for ``torch.cuda.memory._dump_snapshot`` of the whole run."""


class Request(Options, frozen=True, kw_only=True):
    """One run to measure."""

    plan: Plan
    timeout: float = 600.0
    """Seconds after which the child is killed."""


class Runner(contextlib.AbstractContextManager["Runner"]):
    """Measures plans one after another, each in a child process of its own."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave no process behind."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def measure(self, request: Request, said: Callable[[PhaseReading], None]) -> Measurement:
        """Measure one plan.

        Raises:
            MeasureTimeoutError: the run took too long; it is gone.
            MeasureError: the run failed, or died.
            UsageError: the plan cannot be run.
        """
        watch = RunWatch("run", request.device, said)
        try:
            server = self.server(request.plan)
            return watch.measurement(watch.ask(server, "memcalc.measure.runs.run", request))
        except TimeoutError:
            raise MeasureTimeoutError(took_too_long("run", request.timeout)) from None
        finally:
            watch.close()

    def server(self, plan: Plan) -> ForkServer:
        """Return the server for a plan's run: PyTorch reads its environment as it is imported."""
        environment = environment_of(plan)
        if self._server is None or self._server.environment != environment:
            self.close()
            self._server = ForkServer(MeasureError, environment)
        return self._server


def environment_of(plan: Plan) -> dict[str, str]:
    """Return the variables that a run needs, so that measurements can be repeated."""
    shell = os.environ
    device = {name: value for name, value in shell.items() if name.startswith(_OF_THE_DEVICE)}
    kept = {**variables.composed(shell), **device}
    if plan.alloc_conf:
        kept["PYTORCH_ALLOC_CONF"] = plan.alloc_conf
    kept.setdefault("TRANSFORMERS_VERBOSITY", "error")
    kept["TOKENIZERS_PARALLELISM"] = "false"
    # Whoever asks for a GPU while packages are imported asks NVML: no fork could use CUDA after it.
    kept["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return kept


class RunWatch:
    """Follows a run in a child process: what it tells while it goes, and NVML of its GPU."""

    def __init__(self, name: str, device: str, said: Callable[[PhaseReading], None]) -> None:
        """Read what is on the GPUs; ``name``: what the run is called in sentences."""
        self._name, self._said = name, said
        self._sampler = Sampler() if device == "cuda" else None

    def ask(
        self, server: ForkServer, module: str, request: Request, **where: Any
    ) -> dict[str, Any]:
        """Run a request by a job module, with its place among other processes, if any.

        It raises what ``ForkServer.ask`` does.
        """
        return server.ask(
            module,
            self._name,
            {**encode(request), **where},
            hint=(models.find(request.plan.model).model_type,),
            heard=self._hear,
            tick=self._sampler.tick if self._sampler is not None else lambda: None,
            interval=INTERVAL if self._sampler is not None else math.inf,
            timeout=request.timeout,
        )

    def _hear(self, event: dict[str, Any]) -> None:
        if "phase" in event:
            self._said(decode(PhaseReading, event["phase"]))
        elif self._sampler is not None:
            # The run waits until its GPU is read.
            self._sampler.moment(event["moment"], event["facts"], event["pid"])

    def measurement(self, answer: dict[str, Any]) -> Measurement:
        """Return what the run has measured, with what NVML said.

        Raises:
            MeasureError: it cannot be read.
        """
        try:
            measured = decode(Measurement, answer["measurement"])
        except (ValueError, KeyError, TypeError):
            raise MeasureError(f"The {self._name} sent an unreadable measurement.") from None
        if self._sampler is None:
            return measured
        read = self._sampler.figures()
        return replace(measured, **{**read, "unknown": measured.unknown | read["unknown"]})

    def close(self) -> None:
        """Stop reading the GPU."""
        if self._sampler is not None:
            self._sampler.close()
