"""Hold every recorded decode against memcalc's estimate of the same run, phase by phase.

python benchmarks/decode.py evidence/standin/torch2.13.json
"""

import argparse
import json
import pathlib
import tempfile
from collections.abc import Iterator, Sequence

import tables
from judge_recordings import CARDS

from memcalc.catalog.plan import make
from memcalc.estimation.engine import engine
from memcalc.records.prediction import ALLOCATOR_RUNGS as RUNGS
from memcalc.records.prediction import Prediction

PHASES = ("load", "forward", "prefill", "decode")


def label(run: dict) -> str:
    """A recorded run in a few words."""
    settings = " ".join(f"{name}={value}" for name, value in run["plan"].items())
    return f"{run['config']['model_type']} {run['loop']} {settings}"


def off(run: dict, prediction: Prediction) -> dict[tuple[str, str], float]:
    """How far an estimate is from a recording, relative to it, by phase and rung."""
    found = {phase.phase.value: phase for phase in prediction.phases}
    return {
        (phase, rung): getattr(found[phase], rung) / recorded - 1
        for phase in PHASES
        for rung, recorded in zip(RUNGS, run["peaks"].get(phase, ()), strict=False)
    }


def compare(name: str, runs: Sequence[dict]) -> Iterator[dict[tuple[str, str], float]]:
    """Estimate runs of the recording of this name, in order.

    Raises:
        MemcalcError: one could not be estimated.
    """
    major, minor = name.rpartition("-cc")[2]
    gpu = CARDS[f"{major}.{minor}"]
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            config = pathlib.Path(folder) / f"{run['config']['model_type']}-{number}.json"
            config.write_text(json.dumps(run["config"]))
            settings = {"model": str(config), "gpu": gpu, **run["plan"]}
            if run["loop"] == "forward":
                settings["inference"] = True
            # The stand-in driver has a cuDNN that attention does not run with, and what generate
            # reads over it is zero, as if prompts were padded.
            plan = make({**settings, "cudnn_attention": False})
            yield off(run, engine.predict(plan, follows_values=run["loop"] != "generate"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=pathlib.Path, nargs="+")
    parser.add_argument("--only", default="", help="only runs whose label contains this")
    arguments = parser.parse_args()
    worst: dict[tuple[str, str], float] = {}
    for name, recording in tables.read_recordings(arguments.tables).items():
        if "decode" not in name:
            continue
        runs = [r for r in recording["runs"] if arguments.only in label(r)]
        for run, found in zip(runs, compare(name, runs), strict=True):
            words = [f"{phase} {rung} {value:+.3%}" for (phase, rung), value in found.items()]
            print(label(run), "|", ", ".join(words), flush=True)
            for key, value in found.items():
                worst[key] = max(worst.get(key, 0), abs(value))
    for (phase, rung), value in worst.items():
        print(f"worst: {phase} {rung} {value:.3%}")


if __name__ == "__main__":
    main()
