"""The processes that train: one that has everything imported, and forks one child for each run.

Importing PyTorch and transformers takes seconds; forking what has imported them takes
milliseconds. The parent process of the runs never touches CUDA, so that each child makes a context
of its own, and loses only itself.

Requests are JSON lines on standard input: ``{"run": n, "plan": ..., "device": ..., ...}``, and
``{"go": n}`` where a run waits. Answers are JSON lines on the file descriptor named in the first
argument (the second is the asking process), each with its ``run``: ``{"started": pid}``,
``{"phase": ...}``, ``{"moment": name, ...}`` (the run waits for its go), ``{"measurement": ...}``
or ``{"error": sentence, "exit_code": n}``, and, when the run is gone, ``{"ended": wait status}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from typing import Any

from memcalc.errors import MeasureError, MemcalcError
from memcalc.files.artifact import decode, encode
from memcalc.records.measurement import PhaseReading
from memcalc.records.plan import Plan

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Answer requests until standard input ends."""
    out = int(arguments[0])
    _die_with(int(arguments[1]))
    os.dup2(2, 1)
    import memcalc.measure.runs.run  # noqa: F401

    while (line := _read_line()) is not None:
        with contextlib.suppress(ValueError):
            request = json.loads(line)
            # A go may come too late for a run that is gone.
            if "plan" in request:
                _import_for(request["plan"]["model"])
                _run(request, out)


def _run(request: dict[str, Any], out: int) -> None:
    number, parent = request["run"], os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        _send(out, {"run": number, "error": f"No process for the run: {error.strerror}."})
        _send(out, {"run": number, "ended": 0})
        return
    if child == 0:
        try:
            os.setsid()
            _die_with(parent)
            _send(out, {"run": number, "started": os.getpid()})
            _send(out, {"run": number, **_answer(request, out)})
        finally:
            sys.stderr.flush()
            os._exit(0)
    _, status = os.waitpid(child, 0)
    # Workers that the run's own code may have started.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    # A run that died while it spoke left half a line.
    os.write(out, b"\n")
    _send(out, {"run": number, "ended": status})


class _Speaker:
    """Tells the parent how the run goes."""

    def __init__(self, number: int, out: int) -> None:
        self.number = number
        self.out = out

    def said(self, reading: PhaseReading) -> None:
        """A phase has ended."""
        _send(self.out, {"run": self.number, "phase": encode(reading)})

    def moment(self, name: str, facts: dict[str, Any]) -> None:
        """Wait until the parent has read what it wants to read."""
        _send(self.out, {"run": self.number, "moment": name, "facts": facts})
        while (line := _read_line()) is not None:
            if json.loads(line).get("go") == self.number:
                return
        os._exit(1)


def _answer(request: dict[str, Any], out: int) -> dict[str, Any]:
    from memcalc.measure.runs.run import Options, measure

    options = Options(
        device=request["device"],
        steps=request["steps"],
        weights=request["weights"],
        snapshot=request["snapshot"],
    )
    try:
        plan = decode(Plan, request["plan"])
        return {"measurement": encode(measure(plan, options, _Speaker(request["run"], out)))}
    except MemcalcError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        if os.environ.get("MEMCALC_DEBUG"):
            traceback.print_exc()
        reason = " ".join(str(error).split())[:300]
        sentence = f"The run failed: {type(error).__name__}: {reason}"
        return {"error": sentence, "exit_code": MeasureError.exit_code}


def _import_for(model: str) -> None:
    """What runs of this kind import, but nothing that asks CUDA: bitsandbytes does at once."""
    if ":" not in model:
        import transformers

        _ = transformers.PreTrainedModel


def _send(out: int, message: dict[str, Any]) -> None:
    data = (json.dumps(message) + "\n").encode()
    try:
        while data:
            data = data[os.write(out, data) :]
    except BrokenPipeError:
        # Nobody listens any more.
        os._exit(1)


def _read_line() -> bytes | None:
    """One line of standard input and not a byte more: the next may be for another process."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return line


def _die_with(parent: int) -> None:
    """Be killed by the kernel when the parent dies (Linux; elsewhere the pipes tell)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
