"""Record a suite of runs with PyTorch's CUDA code; writes one compact JSON file.

Run it with a Python whose torch is a CUDA build: on a machine with a GPU, or over the stand-in
driver, which lets PyTorch's real host code run without one. The file is what memcalc's tests
hold every estimate against.

    python benchmarks/record_standin.py configs/suites/standin.toml evidence/standin/runs.json
"""

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterable

from memcalc.catalog.plan import load
from memcalc.errors import MemcalcError
from memcalc.files.artifact import decode, encode
from memcalc.measure.runs.runner import Request, Runner
from memcalc.records.plan import Plan

STEPS = 4


def _kept(path: pathlib.Path) -> tuple[dict[str, dict], dict[str, str]]:
    """Runs that are recorded already, by plan, and what they ran on."""
    if not path.exists():
        return {}, {}
    recorded = json.loads(path.read_text())
    # A plan that was written before a setting existed has that setting's default.
    runs = {json.dumps(encode(decode(Plan, run["plan"]))): run for run in recorded["runs"]}
    return runs, recorded["environment"]


def compact(measured: dict) -> dict:
    """What the estimates are held against: peaks of the first and of the last step."""
    state = measured["state"]  # None: nothing was trained
    return {
        "plan": measured["plan"],
        "state": state and {name: state[name] for name in ("device", "host", "managed")},
        "phases": [
            [p["step"], p["phase"], p["requested"], p["allocated"], p["reserved"]]
            for p in measured["phases"]
            if p["step"] in (0, STEPS - 1)
        ],
    }


def settings() -> dict[str, str]:
    """What a recording says of the machine it is made on; to be asked before anything is run."""
    # Where things lie there is nobody's business.
    told = {k: v for k, v in os.environ.items() if k.startswith("STANDIN_") and "/" not in v}
    if "STANDIN_CUDNN" not in told:
        raise SystemExit(
            "Say what runs as cuDNN: set STANDIN_CUDNN to the version that a stand-in gives itself "
            "(90100), to 'the real library, planning only', or to 'on a GPU'."
        )
    return told


def write(path: pathlib.Path, environment: dict, told: dict, runs: Iterable[dict]) -> None:
    """The whole file; after each run, so that an end by the clock loses none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(run) for run in runs)
    head = json.dumps({"environment": environment, "settings": told})[:-1]
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(f'{head}, "runs": [\n{lines}\n]}}\n')
    beside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="only every n-th run")
    parser.add_argument("--first", type=int, default=0, help="... from this one on, the first is 0")
    arguments = parser.parse_args()
    told = settings()
    runs = []
    kept, environment = _kept(arguments.output)
    plans = [p for p in load(arguments.suite) if arguments.only in p.model]
    plans = plans[arguments.first :: arguments.every]
    with Runner() as runner:
        for plan in plans:
            started = time.monotonic()
            if json.dumps(encode(plan)) in kept:
                runs.append(kept[json.dumps(encode(plan))])
                continue
            request = Request(plan=plan, device="cuda", steps=STEPS)
            try:
                measured = encode(runner.measure(request, lambda _: None))
            except MemcalcError as error:
                print(f"{plan.model} {plan.optim}: {error}", file=sys.stderr)
                continue
            environment = {"device": measured["device"], **measured["versions"]}
            runs.append(compact(measured))
            write(arguments.output, environment, told, runs)
            print(f"{plan.model} {plan.optim} {time.monotonic() - started:.1f} s", flush=True)
    write(arguments.output, environment, told, runs)


if __name__ == "__main__":
    main()
