"""Record what older releases of PyTorch take over the stand-in driver, phase by phase.

Usage: record_older.py FILE PYTHON [PYTHON ...], each of an environment with a CUDA build of one
release (pip install torch==2.0.1 "numpy<2" nvidia-cuda-nvcc-cu11, or -cu12). Scripts are those of
benchmarks/older; cuDNN is off, and values are zeros. tests/script/test_older_torch.py holds what is
simulated against the file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from memcalc.script.driver import build

SCRIPTS = Path(__file__).parent / "older"
GPU = "A100-40GB"


def main(file: str, *pythons: str) -> None:
    path = Path(file)
    known = json.loads(path.read_text()) if path.exists() else {"gpu": GPU, "recorded": {}}
    for python in pythons:
        release = build.installed(python).torch.split("+")[0]
        known["recorded"][release] = {
            script.stem: _phases(python, script)
            for script in sorted(SCRIPTS.glob("*.py"))
            if script.stem != "phases"
        }
    by_age = sorted(known["recorded"].items(), key=lambda one: [int(n) for n in one[0].split(".")])
    known["recorded"] = dict(by_age)
    path.write_text(_compact(known))


def _phases(python: str, script: Path) -> dict[str, list[int]]:
    command = [
        *(sys.executable, "-m", "memcalc", "simulate", "--backend", "driver", "--python", python),
        *("--gpu", GPU, "--steps", "0", "--", "python", str(script)),
    ]
    environment = {**os.environ, "MEMCALC_READS": "zeros", "MEMCALC_NO_CUDNN": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return phases_of(done.stderr)


def phases_of(text: str) -> dict[str, list[int]]:
    """What a script printed: requested at the end of each phase, peaks allocated and reserved."""
    lines = [line.split() for line in text.splitlines() if line.startswith("phase ")]
    return {name: [int(number) for number in numbers] for _, name, *numbers in lines}


def _compact(known: dict[str, object]) -> str:
    """One line for each phase."""
    numbers = r"\[\s+(\d+),\s+(\d+),\s+(\d+)\s+\]"
    return re.sub(numbers, r"[\1, \2, \3]", json.dumps(known, indent=1)) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
