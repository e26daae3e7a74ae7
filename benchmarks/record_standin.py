"""Record a suite of runs with PyTorch's CUDA code into a table (tables.py).

Run it with a Python whose torch is a CUDA build: on a machine with a GPU, or over the stand-in
driver, which lets PyTorch's real host code run without one. The table is what memcalc's tests
hold every estimate against. Runs that the recording has already are kept.

    python benchmarks/record_standin.py configs/suites/standin.toml TABLE NAME
"""

import argparse
import json
import os
import pathlib
import sys
import time

import tables

from memcalc.catalog.plan import load
from memcalc.errors import MemcalcError
from memcalc.files.artifact import decode, encode
from memcalc.measure.runs.runner import Request, Runner
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan
from memcalc.records.prediction import ALLOCATOR_RUNGS as RUNGS


def compact(found: Measurement) -> dict:
    """Return the run as a table keeps it."""
    phases = ((p.step, p.phase.value, *(getattr(p, r) for r in RUNGS)) for p in found.phases)
    return tables.encode_run(found.plan, found.state and encode(found.state), phases)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("name", help="of the recording in the table")
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="only every n-th run")
    parser.add_argument("--first", type=int, default=0, help="... from this one on, the first is 0")
    arguments = parser.parse_args()
    told = settings()
    recording = {"environment": {}, "settings": told, "runs": []}
    before = tables.read_table(arguments.table).get(arguments.name, recording)
    kept = {json.dumps(encode(decode(Plan, run["plan"]))): run for run in before["runs"]}
    recording["environment"] = before["environment"]
    plans = [p for p in load(arguments.suite) if arguments.only in p.model]
    plans = plans[arguments.first :: arguments.every]
    with Runner() as runner:
        for plan in plans:
            started = time.monotonic()
            if json.dumps(encode(plan)) in kept:
                recording["runs"].append(kept[json.dumps(encode(plan))])
                continue
            request = Request(plan=plan, device="cuda", steps=tables.LAST + 1)
            try:
                measured = runner.measure(request, lambda _: None)
            except MemcalcError as error:
                print(f"{plan.model} {plan.optim}: {error}", file=sys.stderr)
                continue
            recording["environment"] = {"device": measured.device, **measured.versions}
            recording["runs"].append(compact(measured))
            # After each run, so that an end by the clock loses none.
            tables.write_recording(arguments.table, arguments.name, recording)
            print(f"{plan.model} {plan.optim} {time.monotonic() - started:.1f} s", flush=True)
    tables.write_recording(arguments.table, arguments.name, recording)


if __name__ == "__main__":
    main()
