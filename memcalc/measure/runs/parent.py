"""Asks for runs, passes on what they say, and survives whatever happens to them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from memcalc.children.ending import epitaph, oom_kills
from memcalc.errors import MeasureError, MeasureTimeoutError
from memcalc.measure.gpu.sampler import Sampler
from memcalc.measure.runs.conversation import Conversation
from memcalc.measure.runs.request import Request, body_of, environment_of
from memcalc.records.measurement import Measurement, PhaseReading

_PATIENCE = 5.0
"""Seconds that a killed process has to be gone."""


class Runner:
    """Measures plans one after another, each in a child process of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._reader = -1
        self._noise: IO[bytes] | None = None
        self._number = 0

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self, request: Request, said: Callable[[PhaseReading], None]) -> Measurement:
        """Measure one plan.

        Args:
            request: what to measure.
            said: told of every reading as it comes.

        Raises:
            MeasureTimeoutError: the run took too long; it is gone.
            MeasureError: the run failed, or died.
            UsageError: the plan cannot be run.
        """
        self._number += 1
        deadline = time.monotonic() + request.timeout
        sampler = Sampler() if request.device == "cuda" else None
        talk = Conversation(number=self._number, said=said, sampler=sampler, go=self._go)
        kills, noise = oom_kills(), 0
        try:
            self._start(environment_of(request.plan))
            noise = self._noise_size()
            self._write({"run": self._number, **body_of(request)})
            self._listen(talk, deadline)
        except TimeoutError:
            raise MeasureTimeoutError(
                f"The run took longer than {request.timeout:g} seconds and was ended: "
                "give it more with --timeout."
            ) from None
        finally:
            if not talk.ended:
                self._abort(talk)
            if sampler is not None:
                sampler.close()
        if talk.answer is None:
            tail = self._noise_tail(noise)
            status = talk.status if talk.status is not None else self._status
            raise MeasureError(epitaph(status, tail, kills, garbled=talk.garbled))
        return talk.result()

    def close(self) -> None:
        """Leave no process behind."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        _kill_group(process.pid)
        process.wait()
        self._status = _as_status(process.returncode)
        os.close(self._reader)
        self._reader = -1

    _status: int | None = None
    """How the process that forks the runs ended, where it did."""

    def _start(self, environment: dict[str, str]) -> None:
        """Have a process ready whose environment is the run's."""
        running = self._process is not None and self._process.poll() is None
        if running and self._environment == environment:
            return
        self.close()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the process
        command = [
            sys.executable,
            "-m",
            "memcalc.measure.runs.child",
            str(writer),
            str(os.getpid()),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if os.environ.get("MEMCALC_DEBUG") else self._noise,
                pass_fds=[writer],
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._reader)
            self._reader = -1
            raise MeasureError(f"No process for the run: {error.strerror}.") from None
        finally:
            os.close(writer)
        self._environment = environment

    def _listen(self, talk: Conversation, deadline: float) -> None:
        for line in self._lines(talk, deadline):
            talk.hear(line)
            if talk.ended:
                return

    def _lines(self, talk: Conversation, deadline: float) -> Iterator[bytes]:
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                if not selector.select(min(left, talk.interval)):
                    talk.tick()
                    continue
                chunk = os.read(self._reader, 1 << 16)
                if not chunk:
                    return
                *lines, buffer = (buffer + chunk).split(b"\n")
                yield from lines
                talk.tick()

    def _go(self) -> None:
        self._write({"go": self._number})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # A process that is gone shows in its silence.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(message) + "\n").encode())
            self._process.stdin.flush()

    def _abort(self, talk: Conversation) -> None:
        """End the run for certain; the process that forks survives if it is well."""
        if talk.pid is not None:
            _kill_group(talk.pid)
        if talk.pid is not None and self._process is not None:
            deadline = time.monotonic() + _PATIENCE
            with contextlib.suppress(TimeoutError):
                for line in self._lines(talk, deadline):
                    talk.hear(line, only_end=True)
                    if talk.ended:
                        return
        self.close()

    def _noise_size(self) -> int:
        return os.fstat(self._noise.fileno()).st_size if self._noise is not None else 0

    def _noise_tail(self, start: int) -> str:
        """What the run wrote to standard error, from an offset on."""
        if self._noise is None:
            return ""
        return os.pread(
            self._noise.fileno(), 1 << 16, max(start, self._noise_size() - (1 << 16))
        ).decode(errors="replace")


def measure(request: Request, said: Callable[[PhaseReading], None]) -> Measurement:
    """Measure one plan; see ``Runner.measure``."""
    with Runner() as runner:
        return runner.measure(request, said)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _as_status(code: int) -> int:
    """A return code of ``subprocess`` as ``waitpid`` gives it."""
    return -code if code < 0 else code << 8
