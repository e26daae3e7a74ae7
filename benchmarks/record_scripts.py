"""Run the training scripts of benchmarks/scripts; write their peaks into a table, or compare them.

    python benchmarks/record_scripts.py TABLE NAME [SCRIPT ...]             over the stub driver
    python benchmarks/record_scripts.py --card TABLE NAME [SCRIPT ...]      on this machine's GPU
    python benchmarks/record_scripts.py --compare TABLE NAME [SCRIPT ...]   with what is simulated

NAME is that of the recording in the table (tables.py). SCRIPTs are to be recorded anew; without
any, all are that it lacks. Over the stub driver, a script that fails where all values are zeros is
recorded with those known that it put on the GPU, by the rule of simulate (`reads`). One that fails
is left out and named.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tables

from memcalc.errors import MemcalcError
from memcalc.records.prediction import ALLOCATOR_RUNGS as RUNGS
from memcalc.script.simulate import make_plan, simulate

SCRIPTS = Path(__file__).parent / "scripts"
GPU = "H100 SXM"
TIMEOUT = 300
"""Seconds for one script."""
_PACKAGES = ("transformers", "accelerate", "peft", "bitsandbytes", "triton")
_BARE = """
import atexit, json, runpy, sys, torch
def told():
    stats = torch.cuda.memory_stats()
    rungs = {"requested": "requested_bytes", "allocated": "allocated_bytes",
             "reserved": "reserved_bytes"}
    peaks = {rung: stats[f"{key}.all.peak"] for rung, key in rungs.items()}
    found = {"peaks": peaks, "torch": torch.__version__, "card": torch.cuda.get_device_name()}
    open(sys.argv[0], "w").write(json.dumps(found))
sys.argv = sys.argv[1:]
atexit.register(told)
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs a script as it is, and writes what PyTorch counted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("name", help="of the recording in the table")
    parser.add_argument("script", nargs="*")
    parser.add_argument("--card", action="store_true", help="on this machine's GPU")
    parser.add_argument("--compare", action="store_true", help="with what is simulated")
    arguments = parser.parse_intermixed_args()
    known = {"gpu": GPU, "versions": {}, "runs": {}}
    known = tables.read_table(arguments.table).get(arguments.name, known)
    if arguments.compare:
        compare(known, arguments.script)
        return
    for script in sorted(SCRIPTS.glob("*.py")):
        if script.stem not in (arguments.script or {script.stem} - set(known["runs"])):
            continue
        reads, found = _on_card(script) if arguments.card else _over_stub(script)
        if found is None:
            print(f"{script.stem} failed", file=sys.stderr)
            continue
        known["gpu"] = found.get("card", GPU)
        # Packages that are not here were there for the scripts that stay as they are.
        known["versions"] |= {"torch": found["torch"].split("+")[0], **tables.versions(_PACKAGES)}
        peaks = found["peaks"]
        known["runs"][script.stem] = peaks if reads == "zeros" else {**peaks, "reads": reads}
        known["runs"] = dict(sorted(known["runs"].items()))
        tables.write_recording(arguments.table, arguments.name, known)
        print(script.stem, flush=True)


def compare(recorded: dict[str, Any], names: Sequence[str]) -> None:
    """Print by how much what is simulated of each script differs from what was recorded."""
    for name, peaks in recorded["runs"].items():
        if name not in (names or [name]):
            continue
        known = peaks.get("reads", "zeros") == "known"
        settings = {"gpu": recorded["gpu"], "torch": recorded["versions"]["torch"]}
        found = _simulated(SCRIPTS / f"{name}.py", settings, follows_values=known)
        if isinstance(found, str):
            print(f"{name}: {found}", flush=True)
            continue
        off = {rung: found["peaks"][rung] - peaks[rung] for rung in RUNGS}
        words = ", ".join(
            f"{rung} {by:+,} ({by / peaks[rung]:+.3%})" if by else f"{rung} equal"
            for rung, by in off.items()
        )
        print(f"{name}: {words}", flush=True)


def _over_stub(script: Path) -> tuple[str, dict[str, Any] | None]:
    """The rule by which values were read, and what was found."""
    for reads in ("zeros", "known"):
        known = reads == "known"
        found = _simulated(script, {"gpu": GPU}, follows_values=known, uses_cudnn=False)
        if not isinstance(found, str):
            return reads, found
    return reads, None


def _simulated(script: Path, settings: dict[str, Any], **how: bool) -> dict[str, Any] | str:
    """The peaks of a script, and the PyTorch it ran with; or why there are none."""
    plan = make_plan(["python", str(script.resolve())], steps=0, **settings)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            found = simulate(plan, timeout=TIMEOUT, **how)
    except MemcalcError as error:
        return str(error)
    if found.traced is None or found.ending.code:
        return f"ended with exit code {found.ending.code}"
    phases = found.traced.prediction.phases
    peaks = {rung: max(getattr(one, rung) for one in phases) for rung in RUNGS}
    return {"peaks": peaks, "torch": found.traced.prediction.versions["torch"]}


def _on_card(script: Path) -> tuple[str, dict[str, Any] | None]:
    """What was found; ``None``: the script failed, or never ended."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with tempfile.NamedTemporaryFile("r") as told, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _BARE, told.name, str(script.resolve())]
        try:
            subprocess.run(command, cwd=folder, env=environment, check=True, timeout=TIMEOUT)
        except subprocess.SubprocessError:
            return "known", None
        return "known", json.loads(told.read())


if __name__ == "__main__":
    main()
