"""Hold recorded scripts (record_scripts.py) against what memcalc simulates of them.

Usage: compare_scripts.py FILE [NAME ...]
"""

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

from memcalc.errors import MemcalcError
from memcalc.records.prediction import ALLOCATOR_RUNGS
from memcalc.script.simulate import plan_of, simulate

SCRIPTS = Path(__file__).parent / "scripts"


def main(file: str, *names: str) -> None:
    recorded = json.loads(Path(file).read_text())
    torch = recorded["versions"]["torch"]
    for name, peaks in recorded["scripts"].items():
        if names and name not in names:
            continue
        os.environ["MEMCALC_READS"] = peaks.get("reads", "zeros")
        plan = plan_of(
            ["python", str(SCRIPTS / f"{name}.py")], steps=0, gpu=recorded["gpu"], torch=torch
        )
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                found = simulate(plan)
        except MemcalcError as error:
            print(f"{name}: {error}")
            continue
        if found.traced is None or found.ending.code:
            print(f"{name}: ended with exit code {found.ending.code}", flush=True)
            continue
        phases = found.traced.prediction.phases
        off = {
            rung: max(getattr(phase, rung) for phase in phases) - peaks[rung]
            for rung in ALLOCATOR_RUNGS
        }
        words = ", ".join(
            f"{rung} {by:+,} ({by / peaks[rung]:+.3%})" if by else f"{rung} equal"
            for rung, by in off.items()
        )
        print(f"{name}: {words}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
