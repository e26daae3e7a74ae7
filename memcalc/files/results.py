"""The file of measurements, written whole after every run."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from memcalc import untrusted_text
from memcalc.errors import UsageError
from memcalc.files import artifact, lock
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.records.display import Answer
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import PhaseReading, Trace
from memcalc.version import __version__

PATIENCE = 60.0
"""Seconds to wait for others that add a run to the same file, each of which takes milliseconds."""


class Run(Answer, msgspec.Struct, frozen=True, kw_only=True):
    """A plan, its prediction, and its measurement or why it has none."""

    plan: Plan
    prediction: Prediction | None = None
    measurement: Measurement | None = None
    error: str | None = None
    ranks: tuple[Run, ...] = ()
    """Of a run of several processes each, its plan with the rank; what the run itself holds is
    that of the rank that needs most."""
    reached: tuple[PhaseReading, ...] = ()
    """Of a rank without a measurement: the phases that it had ended."""


def save(path: Path, runs: list[Run]) -> None:
    """Write measured runs to a results file.

    Raises:
        UsageError: the file cannot be written.
    """
    head = {"schema": artifact.SCHEMA, "kind": "measurements", "memcalc": __version__}
    # One run a line: what changed between two files can be seen, and they stay small.
    lines = ",\n".join(json.dumps(artifact.encode(run)) for run in runs)
    artifact.write(path, untrusted_text.json(f'{json.dumps(head)[:-1]}, "runs": [\n{lines}\n]}}\n'))


def load(path: Path) -> list[Run]:
    """Read the measured runs of a results file.

    Raises:
        UsageError: the file holds no measurements, or they are damaged.
    """
    data = artifact.read(path)
    if data.get("kind") != "measurements":
        raise UsageError(f"{path} holds no measurements: give a file that memcalc measure wrote.")
    return artifact.part(list[Run], data.get("runs"), path, "runs")


_OTHERS = {
    "cards": "the cards that a model fits",
    "difference": "a difference",
    "fit": "the largest that fits",
    "snapshot": "what a snapshot holds",
    "suggestions": "suggestions",
}
"""What other files of memcalc hold, by kind."""


def predictions(data: dict[str, Any], path: Path) -> list[Prediction]:
    """Return the predictions in a result file's JSON.

    Raises:
        UsageError: the file has no prediction, or a damaged one.
    """
    kind = data.get("kind", "prediction")
    if isinstance(kind, str) and kind in _OTHERS:
        raise UsageError(
            f"{path} holds {_OTHERS[kind]}, and no prediction: give what memcalc estimate wrote."
        )
    return [prediction for prediction, _ in _read_predictions(data, path)]


def _read_predictions(data: dict[str, Any], path: Path) -> list[tuple[Prediction, bytes]]:
    """Return each prediction in a result file's JSON, with the bytes of its trace (or b"")."""
    bodies = artifact.part(
        list[dict[str, Any]], data.get("predictions", [data]), path, "prediction"
    )
    if not bodies:
        raise UsageError(f"{path} holds no prediction that can be read: it has none.")
    return [
        (
            # Until schema 1 the prediction was one of the keys.
            artifact.part(Prediction, body.get("record", body), path, "prediction"),
            artifact.part(bytes, body.get("trace", ""), path, "trace"),
        )
        for body in bodies
    ]


def with_traces(data: dict[str, Any], path: Path) -> list[tuple[Prediction, Trace]]:
    """Return the predictions in a result file's JSON that have a trace, with it.

    Raises:
        UsageError: one is damaged.
    """
    try:
        return [(one, unpack(trace)) for one, trace in _read_predictions(data, path) if trace]
    except DamagedTraceError as error:
        raise UsageError(f"{path} holds no trace that can be read: {error}.") from None


def append(path: Path, run: Run | None, *, patience: float = PATIENCE) -> None:
    """Add a run to a results file, creating it; ``run`` None: only check that this works.

    Raises:
        UsageError: the file cannot be written, or holds something else.
    """
    if artifact.is_stream(path):
        if run is not None:
            save(path, [run])
        return
    with lock.hold(path, patience=patience):
        runs = load(path) if os.path.exists(path) else []
        save(path, [*runs, run] if run is not None else runs)


def keep(path: Path, run: Run) -> str | None:
    """Add a run to a results file; return a sentence if it was saved elsewhere or not at all.

    Returns:
        ``None``: it is there; else why it is not, and where it is instead.
    """
    try:
        append(path, run)
    except UsageError as error:
        return f"{error} {_save_in_new_folder(path, [run])}"
    return None


def _save_in_new_folder(path: Path, runs: list[Run]) -> str:
    """Save runs in a new temporary folder; return a sentence with its path."""
    with contextlib.suppress(UsageError, OSError):
        place = Path(tempfile.mkdtemp(prefix="memcalc-")) / path.name[-100:]
        save(place, runs)
        return f"The results are in {place}."
    return "The results are not saved: they are only printed."


class ResultsWriter:
    """Collects runs and writes all of them to a results file after each."""

    def __init__(self, path: Path | None, runs: list[Run], say: Callable[[str], None]) -> None:
        self.runs = runs
        self._path, self._say = path, say
        self._unsaved = False
        # A reader of a pipe wants the runs once, when all are there.
        self._late = path is not None and artifact.is_stream(path)

    def add(self, run: Run) -> None:
        """Add a run and write the file."""
        self.runs.append(run)
        self.write()

    def write(self) -> None:
        """Write all runs to the file; on failure warn once and keep them."""
        error = None if self._late else self._try()
        if error is not None and not self._unsaved:
            self._say(f"warning: {error} The results are kept until it can be written.")
        self._unsaved = self._late or error is not None

    def finish(self) -> bool:
        """Write the runs not saved so far, in a temporary folder if need be; return False then."""
        error = self._try() if self._unsaved else None
        self._unsaved = False
        if error is None or self._path is None:
            return True
        self._say(f"error: {error} {_save_in_new_folder(self._path, self.runs)}")
        return False

    def _try(self) -> UsageError | None:
        """Write all runs to the file, if there is one; return why that failed."""
        try:
            if self._path is not None:
                save(self._path, self.runs)
        except UsageError as error:
            return error
        return None


@contextlib.contextmanager
def keeping(
    path: Path | None, *, more: bool, say: Callable[[str], None]
) -> Iterator[ResultsWriter]:
    """Lock a results file inside the block; yield the writer of its runs.

    Raises:
        UsageError: the file holds runs and ``more`` is false, it cannot be written, or another
            program writes it.
    """
    in_file = path is not None and not artifact.is_stream(path)
    with lock.hold(path) if path is not None and in_file else contextlib.nullcontext():
        runs = load(path) if path is not None and in_file and os.path.exists(path) else []
        if runs and not more:
            raise UsageError(
                f"{path} holds {len(runs)} runs already: add --continue to go on with it, "
                "or name another file."
            )
        writer = ResultsWriter(path, runs, say)
        if path is not None and in_file:
            # Written once before anything runs: a full disk or a closed folder shows now.
            save(path, runs)
        try:
            yield writer
        finally:
            writer.finish()
