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

_DEVICE_PREFIXES = (
    *("CUDA_", "CUBLAS_", "NVIDIA_", "OMP_", "PYTORCH_", "TORCH_", "TRITON_"),
    "MEMCALC_",
)
"""Prefixes of the environment variables that configure PyTorch and this machine's devices."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a measured run."""

    device: str
    """``cuda`` or ``cpu``."""
    steps: int = 4
    weights: bool = False
    """Load real weights instead of random ones."""
    index: int = 0
    """Index of the GPU among those that PyTorch sees."""
    snapshot: str | None = None
    """File for ``torch.cuda.memory._dump_snapshot`` of the whole run."""


class Request(Options, frozen=True, kw_only=True):
    """A run to measure."""

    plan: Plan
    timeout: float = 600.0
    """Seconds after which the child is killed."""


class Runner(contextlib.AbstractContextManager["Runner"]):
    """A runner that measures plans one after another, each in a new child process."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the fork server, if one was started."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def measure(self, request: Request, on_phase: Callable[[PhaseReading], None]) -> Measurement:
        """Measure one plan; ``on_phase`` is called with each phase that ends.

        Raises:
            MeasureTimeoutError: the run took too long and was ended.
            MeasureError: the run failed, or died.
            UsageError: the plan cannot be run.
        """
        watch = RunWatch("run", request.device, on_phase)
        try:
            server = self.server(request.plan)
            return watch.measurement(watch.ask(server, "memcalc.measure.runs.run", request))
        except TimeoutError:
            raise MeasureTimeoutError(took_too_long("run", request.timeout)) from None
        finally:
            watch.close()

    def server(self, plan: Plan) -> ForkServer:
        """Return a fork server with the plan's environment, which PyTorch reads on import."""
        environment = child_environment(plan)
        if self._server is None or self._server.environment != environment:
            self.close()
            self._server = ForkServer(MeasureError, environment)
        return self._server


def child_environment(plan: Plan) -> dict[str, str]:
    """Return the environment of a run: only the variables that it needs, to be repeatable."""
    shell = os.environ
    device = {name: value for name, value in shell.items() if name.startswith(_DEVICE_PREFIXES)}
    kept = {**variables.select(shell), **device}
    if plan.alloc_conf:
        kept["PYTORCH_ALLOC_CONF"] = plan.alloc_conf
    kept.setdefault("TRANSFORMERS_VERBOSITY", "error")
    kept["TOKENIZERS_PARALLELISM"] = "false"
    # Imports that look for a GPU then ask NVML: after a query of CUDA no fork could use it.
    kept["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return kept


class RunWatch:
    """A watch over a run in a child process: its events, and NVML's samples of its GPU."""

    def __init__(self, name: str, device: str, on_phase: Callable[[PhaseReading], None]) -> None:
        """Open NVML for a run on a GPU; ``name``: the run's name in sentences."""
        self._name, self._on_phase = name, on_phase
        self._sampler = Sampler() if device == "cuda" else None

    def ask(
        self, server: ForkServer, module: str, request: Request, **where: Any
    ) -> dict[str, Any]:
        """Run a request by a job module in a child, and return the child's answer.

        ``where``: its place among other processes, if any. Raises the errors of ``ForkServer.ask``.
        """
        return server.ask(
            module,
            self._name,
            {**encode(request), **where},
            hint=(models.find(request.plan.model).model_type,),
            heard=self._handle_event,
            tick=self._sampler.tick if self._sampler is not None else lambda: None,
            interval=INTERVAL if self._sampler is not None else math.inf,
            timeout=request.timeout,
        )

    def _handle_event(self, event: dict[str, Any]) -> None:
        if "phase" in event:
            self._on_phase(decode(PhaseReading, event["phase"]))
        elif self._sampler is not None:
            # The run waits until its GPU is read.
            self._sampler.record_moment(event["moment"], event["facts"], event["pid"])

    def measurement(self, answer: dict[str, Any]) -> Measurement:
        """Decode the measurement in a child's answer, and add NVML's figures.

        Raises:
            MeasureError: the answer cannot be read.
        """
        try:
            measured = decode(Measurement, answer["measurement"])
        except (ValueError, KeyError, TypeError):
            raise MeasureError(f"The {self._name} sent an unreadable measurement.") from None
        if self._sampler is None:
            return measured
        read = self._sampler.measurement_fields()
        return replace(measured, **{**read, "unknown": measured.unknown | read["unknown"]})

    def close(self) -> None:
        """Stop sampling the GPU."""
        if self._sampler is not None:
            self._sampler.close()
