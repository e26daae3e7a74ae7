"""Asks a child process to trace plans, and turns whatever happens to it into one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from memcalc.errors import EstimateError, MemcalcError, UsageError
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import DamagedTraceError, read
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.symbolic.records import SymbolicTrace
from memcalc.trace import breadcrumbs

_ENVIRONMENT = {
    # The same answer with and without a GPU in the machine.
    "CUDA_VISIBLE_DEVICES": "",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def trace_all(plans: Iterable[Plan]) -> Iterator[Prediction | MemcalcError]:
    """Trace plans in one child process, in order; yields each answer as it comes."""
    with Client() as client:
        for plan in plans:
            yield client.ask(plan)


class Client:
    """A child process that traces one plan after the other; started when it is first asked.

    A crash takes one plan with it: the next one is asked of a fresh child.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="memcalc-")
        self._trail = os.path.join(self._folder.name, "trail")
        breadcrumbs.create(self._trail)
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: IO[str] | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            # It may be in the middle of a plan that nobody waits for any more.
            self._child.terminate()
        self._stop()
        self._folder.cleanup()

    def ask(self, plan: Plan, keep: Path | None = None) -> Prediction | MemcalcError:
        """Trace one plan.

        Args:
            plan: what to trace.
            keep: file to write the trace to; ``None``: it is not kept.
        """
        trace = None if keep is None else str(keep.absolute())
        answer = self._answer({"plan": encode(plan), "trace": trace})
        if isinstance(answer, MemcalcError):
            return answer
        prediction: Prediction = decode(Prediction, answer["prediction"])
        return prediction

    def grow(self, plan: Plan) -> SymbolicTrace | MemcalcError:
        """Learn how the trace of a plan grows with batch and sequence."""
        file = Path(self._folder.name) / "growth.trace"
        answer = self._answer({"plan": encode(plan), "trace": str(file), "grow": True})
        if isinstance(answer, MemcalcError):
            return answer
        growth: SymbolicTrace = decode(SymbolicTrace, answer["growth"])
        try:
            return replace(growth, trace=read(file))
        except (OSError, DamagedTraceError) as error:
            return EstimateError(f"What the simulated run wrote cannot be read: {error}.")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any] | MemcalcError:
        if self._child is None:
            self._start()
        assert self._child is not None
        assert self._child.stdin is not None
        assert self._answers is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return self._died()
        line = self._answers.readline()
        return _understand(json.loads(line)) if line else self._died()

    def _start(self) -> None:
        reader, writer = os.pipe()
        # A file, because a pipe that nobody reads would block a child that prints a lot.
        with open(self._noise(), "wb") as noise:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "memcalc.estimation.worker", str(writer), self._trail],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if os.environ.get("MEMCALC_DEBUG") else noise,
                pass_fds=[writer],
                env={**os.environ, **_ENVIRONMENT},
            )
        os.close(writer)
        self._answers = os.fdopen(reader, encoding="utf-8")

    def _noise(self) -> Path:
        return Path(self._folder.name) / "stderr"

    def _stop(self) -> int:
        """End the child and say how it ended."""
        child, self._child = self._child, None
        if child is None:
            return 0
        assert child.stdin is not None
        assert self._answers is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        self._answers.close()
        return child.wait()

    def _died(self) -> EstimateError:
        code = self._stop()
        if code < 0:
            name = signal.Signals(-code).name
            killed = "killed, most likely for lack of memory"
            cause = killed if name == "SIGKILL" else f"ended by {name}"
        else:
            cause = f"ended with exit code {code}"
        said = self._noise().read_bytes().decode(errors="replace").strip()
        last = said.rsplit("\n", 1)[-1][:200]
        where = breadcrumbs.read(self._trail)
        return EstimateError(f"The simulated run was {cause}{where}{f': {last}' if last else ''}.")


def _understand(answer: dict[str, Any]) -> dict[str, Any] | MemcalcError:
    if "error" not in answer:
        return answer
    kind = UsageError if answer["exit_code"] == UsageError.exit_code else EstimateError
    return kind(answer["error"])
