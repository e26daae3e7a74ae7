"""Hold every recorded run against memcalc's estimate of the same plan, rung by rung.

python benchmarks/accuracy.py evidence/standin/runs-*.json
"""

import dataclasses
import json
import pathlib
import statistics
import sys

from memcalc.artifact import decode
from memcalc.records import Plan, Prediction
from memcalc.trace.client import trace_all

GPU = {"7.5": "T4", "8.0": "A100-80GB", "9.0": "H200"}
RUNGS = ("requested", "allocated", "reserved")


def plans_of(recording: dict) -> list[Plan]:
    gpu = GPU[recording["environment"]["capability"]]
    version = recording["environment"]["torch"].split("+")[0]
    return [
        dataclasses.replace(decode(Plan, run["plan"]), gpu=gpu, torch=version)
        for run in recording["runs"]
    ]


def steady(run: dict) -> dict[str, tuple[int, int, int]]:
    """The highest level of each rung in each phase of the last step."""
    last = max(step for step, *_ in run["phases"])
    peaks: dict[str, tuple[int, int, int]] = {}
    for step, phase, *levels in run["phases"]:
        if step == last:
            before = peaks.get(phase, (0, 0, 0))
            peaks[phase] = tuple(map(max, before, levels))
    return peaks


def errors(run: dict, prediction: Prediction) -> dict[tuple[str, str], tuple[int, int]]:
    """(predicted, recorded) for every phase and rung."""
    real = steady(run)
    return {
        (phase.phase.value, rung): (getattr(phase, rung), real[phase.phase.value][index])
        for phase in prediction.phases
        for index, rung in enumerate(RUNGS)
        if phase.phase.value in real
    }


def label(plan: Plan) -> str:
    default = Plan(model=plan.model)
    skip = ("model", "gpu", "torch", "batch", "seq", "cudnn_attention")
    changed = [
        f"{f.name}={getattr(plan, f.name)}"
        for f in dataclasses.fields(Plan)
        if f.name not in skip and getattr(plan, f.name) != getattr(default, f.name)
    ]
    return f"{plan.model} {' '.join(changed)}"


def main(paths: list[str]) -> None:
    worst: dict[str, list[float]] = {rung: [] for rung in RUNGS}
    for path in paths:
        recording = json.loads(pathlib.Path(path).read_text())
        plans = plans_of(recording)
        print(f"\n{path} ({len(plans)} runs)")
        for run, plan, answer in zip(recording["runs"], plans, trace_all(plans), strict=True):
            if not isinstance(answer, Prediction):
                print(f"  FAILED {label(plan)}: {answer}")
                continue
            found = errors(run, answer)
            parts = []
            for index, rung in enumerate(RUNGS):
                recorded = max(levels[index] for levels in steady(run).values())
                predicted = max(getattr(phase, rung) for phase in answer.phases)
                off = (predicted - recorded) / recorded
                worst[rung].append(abs(off))
                exact = all(a == b for (_, name), (a, b) in found.items() if name == rung)
                parts.append(f"{rung} {off:+.3%}{' exact' if exact else ''}")
            print(f"  {label(plan)}: {', '.join(parts)}", flush=True)
    print()
    for rung, values in worst.items():
        exact = sum(value == 0 for value in values)
        print(
            f"{rung}: median {statistics.median(values):.3%}, worst {max(values):.3%}, "
            f"peak equal in {exact} of {len(values)} runs"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
