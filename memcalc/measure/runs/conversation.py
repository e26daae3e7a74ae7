"""What one run says to the process that asked for it, line by line, and what that adds up to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from memcalc.errors import MeasureError, MemcalcError, UsageError
from memcalc.files.artifact import decode
from memcalc.measure.gpu.sampler import INTERVAL, Sampler
from memcalc.records.measurement import Measurement, PhaseReading


class Conversation:
    """Hears the lines of one run."""

    def __init__(
        self,
        *,
        number: int,
        said: Callable[[PhaseReading], None],
        sampler: Sampler | None,
        go: Callable[[], None],
    ) -> None:
        self.answer: dict[str, Any] | None = None
        self.pid: int | None = None
        self.status: int | None = None
        """How the run's process ended, as ``waitpid`` gives it."""
        self.ended = False
        self.garbled = False
        """Something was said that cannot be read."""
        self.interval = sampler.interval if sampler is not None else 50 * INTERVAL
        self._number = number
        self._said = said
        self._sampler = sampler
        self._go = go

    def tick(self) -> None:
        """Some time has passed."""
        if self._sampler is not None:
            self._sampler.tick()

    def hear(self, line: bytes, *, only_end: bool = False) -> None:
        """Take one line in; what belongs to an earlier run is passed over."""
        if not line.strip():
            return
        try:
            message = json.loads(line)
            if message.get("run") == self._number and not (only_end and "ended" not in message):
                self._understand(message)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.garbled = True

    def _understand(self, message: dict[str, Any]) -> None:
        if "started" in message:
            self.pid = int(message["started"])
        elif "phase" in message:
            self._said(decode(PhaseReading, message["phase"]))
        elif "moment" in message:
            if self._sampler is not None:
                self._sampler.moment(message["moment"], message["facts"], self.pid or 0)
            self._go()
        elif "ended" in message:
            self.ended, self.status = True, int(message["ended"])
        else:
            self.answer = message

    def result(self) -> Measurement:
        """The measurement with what NVML said beside it.

        Raises:
            MemcalcError: the run says that it failed, or what it says cannot be read.
        """
        assert self.answer is not None
        if "measurement" not in self.answer:
            raise _error(self.answer)
        try:
            measured: Measurement = decode(Measurement, self.answer["measurement"])
        except (ValueError, TypeError, KeyError, AttributeError):
            raise MeasureError("What the run measured cannot be read.") from None
        if self._sampler is None:
            return measured
        gpu, failure = self._sampler.reading(), self._sampler.failure
        used = gpu.peak_process if gpu is not None else None
        unknown = dict(measured.unknown)
        if used is None:
            unknown["process_used"] = failure or "NVML listed no process of the run"
        if gpu is None:
            unknown["gpu"] = failure or "the run never said which card it used"
        return replace(measured, gpu=gpu, process_used=used, unknown=unknown)


def _error(answer: dict[str, Any]) -> MemcalcError:
    sentence = str(answer.get("error", "The run gave no answer that can be read."))
    if answer.get("exit_code") == UsageError.exit_code:
        return UsageError(sentence)
    return MeasureError(sentence)
