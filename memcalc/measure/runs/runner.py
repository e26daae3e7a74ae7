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
        observer = Observer(request.device, said)
        try:
            answer = self.server(request.plan).ask(
                "memcalc.measure.runs.run",
                "run",
                encode(request),
                hint=hint(request.plan),
                heard=observer.heard,
                tick=observer.tick,
                interval=INTERVAL if observer.sampler is not None else math.inf,
                timeout=request.timeout,
            )
            return observer.measurement(answer, "run")
        except TimeoutError:
            raise MeasureTimeoutError(took_too_long("run", request.timeout)) from None
        finally:
            observer.close()

    def server(self, plan: Plan) -> ForkServer:
        """Return the server for a plan's run: PyTorch reads its environment as it is imported."""
        environment = environment_of(plan)
        if self._server is None or self._server.environment != environment:
            self.close()
            self._server = ForkServer(MeasureError, environment)
        return self._server


def hint(plan: Plan) -> tuple[str]:
    """Return what a server of a plan's run should import."""
    return (models.find(plan.model).model_type,)


def environment_of(plan: Plan) -> dict[str, str]:
    """Only what a run needs, so that measurements can be repeated."""
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


class Observer:
    """Hears what a run tells while it goes, and samples its GPU."""

    def __init__(self, device: str, said: Callable[[PhaseReading], None]) -> None:
        self._said = said
        # It reads what was on the GPU before the run came to it.
        self.sampler = Sampler() if device == "cuda" else None

    def heard(self, event: dict[str, Any]) -> None:
        """A phase has ended, or the run waits to be looked at."""
        if "phase" in event:
            self._said(decode(PhaseReading, event["phase"]))
        elif self.sampler is not None:
            self.sampler.moment(event["moment"], event["facts"], event["pid"])

    def tick(self) -> None:
        """Take a sample, if it is time."""
        if self.sampler is not None:
            self.sampler.tick()

    def measurement(self, answer: dict[str, Any], name: str) -> Measurement:
        """What a run, called so, has measured, with what NVML said.

        Raises:
            MeasureError: it cannot be read.
        """
        try:
            measured = decode(Measurement, answer["measurement"])
        except (ValueError, KeyError, TypeError):
            raise MeasureError(f"The {name} sent an unreadable measurement.") from None
        if self.sampler is None:
            return measured
        read = self.sampler.figures()
        return replace(measured, **{**read, "unknown": measured.unknown | read["unknown"]})

    def close(self) -> None:
        """Look no more."""
        if self.sampler is not None:
            self.sampler.close()
