"""The file that measurements are kept in: written whole after every run, so that none is lost."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from memcalc.errors import UsageError
from memcalc.files import artifact, lock
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.version import __version__


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One plan: what was predicted, and what was measured or why not."""

    plan: Plan
    prediction: Prediction | None = None
    measurement: Measurement | None = None
    error: str | None = None


def save(path: Path, runs: list[Run]) -> None:
    """Write all runs.

    Raises:
        UsageError: the file cannot be written.
    """
    head = {"schema": artifact.SCHEMA, "kind": "measurements", "memcalc": __version__}
    # One run a line: what changed between two files can be seen, and they stay small.
    lines = ",\n".join(json.dumps(artifact.encode(run)) for run in runs)
    artifact.write(path, f'{json.dumps(head)[:-1]}, "runs": [\n{lines}\n]}}\n')


def load(path: Path) -> list[Run]:
    """Read runs back.

    Raises:
        UsageError: the file holds no measurements.
    """
    data = artifact.read(path)
    if data.get("kind") != "measurements":
        raise UsageError(f"{path} holds no measurements: give a file that memcalc measure wrote.")
    try:
        return [artifact.decode(Run, run) for run in data["runs"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{path} is damaged: it holds no runs that can be read.") from None


def append(path: Path, run: Run | None) -> None:
    """Add one run to a file, making it if there is none; ``None``: only see that this will work.

    Raises:
        UsageError: the file cannot be written, or holds something else.
    """
    with lock.held(path):
        runs = load(path) if path.exists() else []
        save(path, [*runs, run] if run is not None else runs)


class ResultsWriter:
    """Adds runs to a file; one that cannot be written any more costs no run."""

    def __init__(self, path: Path | None, runs: list[Run], say: Callable[[str], None]) -> None:
        self.runs = runs
        self._path = path
        self._say = say
        self._unsaved = False

    def add(self, run: Run) -> None:
        """Take a run and write the file."""
        self.runs.append(run)
        self.write()

    def write(self) -> None:
        """Write the file."""
        if self._path is not None:
            try:
                save(self._path, self.runs)
                self._unsaved = False
            except UsageError as error:
                if not self._unsaved:
                    self._say(f"warning: {error} The results are kept until it can be written.")
                self._unsaved = True

    def finish(self) -> bool:
        """Write what could not be written so far, elsewhere if need be; False: elsewhere."""
        if not self._unsaved or self._path is None:
            return True
        with contextlib.suppress(UsageError):
            save(self._path, self.runs)
            self._unsaved = False
            return True
        where = "nowhere else either: they are only in what is printed"
        with contextlib.suppress(UsageError, OSError):
            folder = Path(tempfile.mkdtemp(prefix="memcalc-"))
            save(folder / self._path.name, self.runs)
            where = f"in {folder}"
        self._say(f"error: {self._path} cannot be written; the results are {where}.")
        self._path = None
        return False


@contextlib.contextmanager
def keeping(
    path: Path | None, *, more: bool, say: Callable[[str], None]
) -> Iterator[ResultsWriter]:
    """Keep runs in a file, or only in memory.

    Args:
        path: where; ``None``: only in memory.
        more: add to the runs that the file holds already.
        say: told when the file cannot be written.

    Raises:
        UsageError: the file holds runs and ``more`` is false, it cannot be written, or another
            program writes it.
    """
    if path is None:
        yield ResultsWriter(None, [], say)
        return
    with lock.held(path):
        runs = load(path) if path.exists() else []
        if runs and not more:
            raise UsageError(
                f"{path} holds {len(runs)} runs already: add --continue to go on with it, "
                "or name another file."
            )
        # Written once before anything runs: a full disk or a closed folder shows now.
        save(path, runs)
        writer = ResultsWriter(path, runs, say)
        try:
            yield writer
        finally:
            writer.finish()
