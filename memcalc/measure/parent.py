"""Starts the child that trains, passes on what it says, and survives whatever happens to it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from memcalc.artifact import decode, encode
from memcalc.errors import MeasureError, MeasureTimeoutError, MemcalcError, UsageError
from memcalc.records import Measurement, PhaseReading, Plan

_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "TZ", "VIRTUAL_ENV")
_KEPT_PREFIXES = (
    "CUDA_",
    "CUBLAS_",
    "HF_",
    "LD_",
    "MEMCALC_",
    "NVIDIA_",
    "OMP_",
    "PYTHON",
    "PYTORCH_",
    "STANDIN_",
    "TORCH_",
    "TRITON_",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run to measure."""

    plan: Plan
    device: str
    steps: int = 4
    timeout: float = 600.0
    """Seconds after which the child is killed."""
    snapshot: str | None = None


def measure(request: Request, said: Callable[[PhaseReading], None]) -> Measurement:
    """Measure one plan in a child process of its own.

    Args:
        request: what to measure.
        said: told of every reading as it comes.

    Raises:
        MeasureTimeoutError: the child took too long; it is gone.
        MeasureError: the run failed, or the child died.
        UsageError: the plan cannot be run.
    """
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "memcalc.measure.child", str(writer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[writer],
        env=_environment(request.plan),
        start_new_session=True,
    )
    os.close(writer)
    try:
        assert child.stdin is not None
        body = {
            "plan": encode(request.plan),
            "device": request.device,
            "steps": request.steps,
            "snapshot": request.snapshot,
        }
        child.stdin.write(json.dumps(body).encode())
        child.stdin.close()
        child.stdin = None
        answer = _listen(reader, request, said)
    except BrokenPipeError:
        answer = None
    finally:
        os.close(reader)
        _end(child)
    if answer is None:
        raise MeasureError(_epitaph(child))
    return _understand(answer)


def _environment(plan: Plan) -> dict[str, str]:
    """Only what a run needs, so that measurements can be repeated."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    if plan.alloc_conf:
        kept["PYTORCH_ALLOC_CONF"] = plan.alloc_conf
    kept.setdefault("TRANSFORMERS_VERBOSITY", "error")
    kept["TOKENIZERS_PARALLELISM"] = "false"
    return kept


def _listen(
    reader: int, request: Request, said: Callable[[PhaseReading], None]
) -> dict[str, object] | None:
    """Read lines until the answer, the end, or the timeout."""
    deadline = time.monotonic() + request.timeout
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise MeasureTimeoutError(
                    f"The run took longer than {request.timeout:g} seconds and was ended: "
                    "give it more with --timeout."
                )
            chunk = os.read(reader, 1 << 16)
            if not chunk:
                return None
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "phase" not in message:
                    return dict(message)
                said(decode(PhaseReading, message["phase"]))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Make sure that nothing of the child is left."""
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _epitaph(child: subprocess.Popen[bytes]) -> str:
    noise = child.stderr.read() if child.stderr is not None else b""
    last = noise.decode(errors="replace").strip().rsplit("\n", 1)[-1][:200]
    code = child.returncode
    if code < 0:
        name = signal.Signals(-code).name
        cause = "was killed, most likely for lack of memory" if name == "SIGKILL" else name
        return f"The run ended by a signal ({cause}){': ' + last if last else ''}."
    return f"The run ended without an answer (exit code {code}){': ' + last if last else ''}."


def _understand(answer: dict[str, object]) -> Measurement:
    if "measurement" in answer:
        measurement: Measurement = decode(Measurement, answer["measurement"])
        return measurement
    kind: type[MemcalcError] = MeasureError
    if answer.get("exit_code") == UsageError.exit_code:
        kind = UsageError
    raise kind(str(answer["error"]))
