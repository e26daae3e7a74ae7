"""Hold every recorded run against memcalc's estimate of the same plan, rung by rung.

python benchmarks/accuracy.py -o evidence/accuracy.json evidence/standin/torch*.json
python scripts/make_accuracy.py

Every recording of PyTorch's phases in the tables is estimated; ``--recording`` names some.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
from unittest import mock

import tables
from judge_recordings import CARDS, label
from msgspec.structs import replace

from memcalc.children import variables
from memcalc.estimation.engine import engine
from memcalc.files.artifact import decode
from memcalc.records.measurement import PhaseReading, steady_peaks
from memcalc.records.plan import Plan
from memcalc.records.prediction import ALLOCATOR_RUNGS as RUNGS
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Phase

IN_TURN = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers reads a checkpoint's tensors one by one, not in threads."""


def plans_of(recording: dict) -> list[Plan]:
    gpu = CARDS[recording["environment"]["capability"]]
    version = recording["environment"]["torch"].split("+")[0]
    return [replace(decode(Plan, run["plan"]), gpu=gpu, torch=version) for run in recording["runs"]]


def steady(run: dict) -> dict[Phase, dict[str, int]]:
    """The peaks of a recorded run's steady step, by phase and rung."""
    return steady_peaks(
        PhaseReading(
            step=step, phase=Phase(phase), active=None,
            **dict(zip(RUNGS, levels, strict=True)),
        )
        for step, phase, levels in tables.phases_of(run)
    )  # fmt: skip


def errors(
    real: dict[Phase, dict[str, int]], prediction: Prediction
) -> dict[tuple[Phase, str], tuple[int, int]]:
    """(predicted, recorded) for every phase and rung."""
    return {
        (phase.phase, rung): (getattr(phase, rung), real[phase.phase][rung])
        for phase in prediction.phases
        for rung in RUNGS
        if phase.phase in real
    }


@dataclasses.dataclass(frozen=True)
class Row:
    """One run: for each rung the relative error of the peak, and whether every phase is equal."""

    plan: Plan
    off: dict[str, float]
    exact: dict[str, bool]


def predict(recording: dict, plan: Plan) -> Prediction:
    """Estimate as of the machine of a recording, which says what ran there as cuDNN.

    A number is the version that a cuDNN without any function gives itself: it is off. Over the
    stand-in driver no kernel runs, so a value read from the device is always zero.

    Raises:
        MemcalcError: the plan cannot be estimated.
        ValueError: it does not say so, and no one can tell from its figures.
    """
    settings = recording["settings"]
    cudnn = settings.get("STANDIN_CUDNN")
    if cudnn is None:
        raise ValueError("the recording's settings do not say what ran as cuDNN (STANDIN_CUDNN)")
    given = {name: text for name, text in settings.items() if name == IN_TURN and text == "1"}
    select = variables.select
    # Processes that are warm already were not given it; others start where the shell's differ.
    with (
        mock.patch.dict(os.environ, given),
        mock.patch.object(variables, "select", lambda shell: {**select(shell), **given}),
    ):
        on_a_gpu = cudnn == "on a GPU"
        return engine.predict(plan, follows_values=on_a_gpu, uses_cudnn=not cudnn.isdigit())


def compare(recording: dict) -> list[Row]:
    """Estimate the runs of a recording, and compare.

    Raises:
        MemcalcError: a plan could not be estimated.
        ValueError: the recording does not say what ran as cuDNN.
    """
    rows = []
    for run, plan in zip(recording["runs"], plans_of(recording), strict=True):
        answer = predict(recording, plan)
        real = steady(run)
        found = errors(real, answer)
        off, exact = {}, {}
        for rung in RUNGS:
            recorded = max(levels[rung] for levels in real.values())
            off[rung] = (max(getattr(phase, rung) for phase in answer.phases) - recorded) / recorded
            exact[rung] = all(a == b for (_, name), (a, b) in found.items() if name == rung)
        rows.append(Row(plan=plan, off=off, exact=exact))
    return rows


def summary(rows: list[Row]) -> list[tuple[str, str, str, str]]:
    """(rung, median error, worst error, runs whose every phase is equal) in words."""
    lines = []
    for rung in RUNGS:
        values = [abs(row.off[rung]) for row in rows]
        exact = sum(row.exact[rung] for row in rows)
        median, worst = statistics.median(values), max(values)
        lines.append((rung, f"{median:.3%}", f"{worst:.3%}", f"{exact} of {len(rows)}"))
    return lines


def words(row: Row, rung: str) -> str:
    return "equal" if row.exact[rung] else f"{row.off[rung]:+.3%}"


def written(results: dict[str, list[Row]]) -> str:
    """What scripts/make_accuracy.py reads: a list of runs for each recording, one a line."""
    parts = []
    for name, rows in results.items():
        lines = [
            json.dumps({"run": label(row.plan), "off": row.off, "exact": row.exact}) for row in rows
        ]
        parts.append(f"{json.dumps(name)}: [\n" + ",\n".join(lines) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=pathlib.Path, nargs="+")
    parser.add_argument("--recording", action="append", help="name; all of the tables without any")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="evidence/accuracy.json")
    arguments = parser.parse_args()
    results = {}
    for name, recording in tables.read_recordings(arguments.tables).items():
        if name not in (arguments.recording or [name]) or "settings" not in recording:
            continue
        results[name] = compare(recording)
        print(f"\n{name} ({len(results[name])} runs)")
        for row in results[name]:
            found = ", ".join(f"{rung} {words(row, rung)}" for rung in RUNGS)
            print(f"  {label(row.plan)}: {found}", flush=True)
    print()
    for line in summary([row for rows in results.values() for row in rows]):
        print("{}: median {}, worst {}, every phase equal in {} runs".format(*line))
    if arguments.output:
        arguments.output.write_text(written(results))


if __name__ == "__main__":
    main()
