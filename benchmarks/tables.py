"""Read and write tables of recordings: one file for each release of PyTorch, one run a line.

A table maps the names of recordings to what was recorded. A recording names its ``environment``
and ``settings``, and has ``runs``: the changed settings of each plan, the bytes of the optimizer's
state on the device, on the host and managed, and the peaks of requested, allocated and reserved
bytes in each phase of the first and of the last step.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from memcalc.files.artifact import encode
from memcalc.records.fields import changed_settings
from memcalc.records.plan import Plan

STANDIN = Path(__file__).resolve().parent.parent / "evidence" / "standin"
Peaks = tuple[int, ...]
"""Bytes requested, allocated and reserved."""
LAST = 3
"""Number of the last step that is recorded, from zero."""
_STEPS = {0: "first", LAST: "last"}


def read_table(path: Path) -> dict[str, Any]:
    """Return the recordings of a table by name; none if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_recordings(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the recordings of several tables by name."""
    return {name: found for path in paths for name, found in read_table(path).items()}


def write_recording(path: Path, name: str, recording: dict[str, Any]) -> None:
    """Put a recording into a table; the file is replaced as a whole, so an interrupt loses none."""
    table = {**read_table(path), name: recording}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    texts = (f"{json.dumps(key)}: {_text(table[key])}" for key in sorted(table))
    part.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")
    part.replace(path)


def _text(recording: dict[str, Any]) -> str:
    head = {name: value for name, value in recording.items() if name != "runs"}
    runs = recording["runs"]
    if isinstance(runs, dict):
        lines = [f"{json.dumps(name)}: {json.dumps(run)}" for name, run in runs.items()]
    else:
        lines = [json.dumps(run) for run in runs]
    opened, closed = "{}" if isinstance(runs, dict) else "[]"
    return f'{json.dumps(head)[:-1]}, "runs": {opened}\n' + ",\n".join(lines) + f"\n{closed}}}"


def write_rows(path: Path, head: dict[str, Any], name: str, rows: Iterable[Any]) -> None:
    """Write an object in JSON whose last value is a list, one row of it a line."""
    lines = ",\n".join(map(json.dumps, rows))
    path.write_text(f'{json.dumps(head)[:-1]}, "{name}": [\n{lines}\n]}}\n', encoding="utf-8")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found: dict[str, str] = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def encode_run(plan: Plan, state: Any, phases: Iterable[Any], rank: int | None = None) -> Any:
    """Return a run as a table keeps it.

    Args:
        plan: what ran.
        state: bytes by ``device``, ``host`` and ``managed``; ``None``: nothing was trained.
        phases: rows of step, phase, requested, allocated and reserved bytes.
        rank: the process that was recorded, of several.
    """
    peaks: dict[str, dict[str, Peaks]] = {}
    for (step, phase), levels in highest(phases).items():
        if step in _STEPS:
            peaks.setdefault(_STEPS[step], {})[phase] = levels
    settings = encode(plan)
    return {
        "plan": {name: settings[name] for name in changed_settings(plan)},
        **({} if rank is None else {"rank": rank}),
        "state": state and [state[name] for name in ("device", "host", "managed")],
        **peaks,
    }


def highest(rows: Iterable[Any]) -> dict[tuple[int, str], Peaks]:
    """Return levels by step and phase; of micro-batches, which have the same, the highest."""
    found: dict[tuple[int, str], Peaks] = {}
    for step, phase, *levels in rows:
        before = found.get((step, phase), (0,) * len(levels))
        found[step, phase] = tuple(max(a, b or 0) for a, b in zip(before, levels, strict=True))
    return found


def phases_of(run: dict[str, Any]) -> Iterator[tuple[int, str, list[int]]]:
    """Yield step, phase, and peaks of requested, allocated and reserved bytes."""
    for step, name in _STEPS.items():
        for phase, levels in run.get(name, {}).items():
            yield step, phase, levels
