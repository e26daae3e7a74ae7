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
from importlib.metadata import PackageNotFoundError, version
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
        known["versions"] |= {"torch": found["torch"].split("+")[0], **_versions()}
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
        os.environ["MEMCALC_READS"] = peaks.get("reads", "zeros")
        command = ["python", str((SCRIPTS / f"{name}.py").resolve())]
        plan = make_plan(command, steps=0, gpu=recorded["gpu"], torch=recorded["versions"]["torch"])
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
        off = {rung: max(getattr(one, rung) for one in phases) - peaks[rung] for rung in RUNGS}
        words = ", ".join(
            f"{rung} {by:+,} ({by / peaks[rung]:+.3%})" if by else f"{rung} equal"
            for rung, by in off.items()
        )
        print(f"{name}: {words}", flush=True)


def _over_stub(script: Path) -> tuple[str, dict[str, Any] | None]:
    """The rule by which values were read, and what was found."""
    command = [
        *(sys.executable, "-m", "memcalc", "simulate", "--gpu", GPU, "--steps", "0"),
        *("--format", "json", "--", "python", str(script.resolve())),
    ]
    for reads in ("zeros", "known"):
        done = _ran(command, {"MEMCALC_READS": reads, "MEMCALC_NO_CUDNN": "1"})
        if done:
            return reads, _peaks(json.loads(done))
    return reads, None


def _peaks(saved: dict[str, Any]) -> dict[str, Any]:
    peaks = {rung: max(phase[rung] for phase in saved["phases"]) for rung in RUNGS}
    return {"peaks": peaks, "torch": saved["versions"]["torch"]}


def _on_card(script: Path) -> tuple[str, dict[str, Any] | None]:
    with tempfile.NamedTemporaryFile("r") as told:
        command = [sys.executable, "-c", _BARE, told.name, str(script.resolve())]
        done = _ran(command, {})
        return "known", None if done is None else json.loads(told.read())


def _ran(command: Sequence[str], variables: dict[str, str]) -> str | None:
    """What a command printed; ``None``: it failed, or never ended, as some loops over zeros."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **variables},
                stdout=subprocess.PIPE,
                check=False,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return None
    return None if done.returncode else done.stdout.decode()


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


if __name__ == "__main__":
    main()
