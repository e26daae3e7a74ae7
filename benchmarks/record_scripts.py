"""Run the training scripts of benchmarks/scripts and write their peaks.

    python benchmarks/record_scripts.py FILE [NAME ...]             over the stub driver
    python benchmarks/record_scripts.py --card FILE [NAME ...]      on this machine's GPU

NAMEs are scripts to record anew; without any, all are that FILE lacks. All others stay as they are
in FILE, which is written after each script. Over the stub driver, a script that fails where all
values are zeros is recorded with those known that it put on the GPU, by the rule of simulate
(`reads`). One that fails is left out and named.

compare_scripts.py holds such a file against what is simulated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
GPU = "H100 SXM"
TIMEOUT = 300
"""Seconds for one script."""
_PACKAGES = (
    *("transformers", "accelerate", "peft", "trl", "diffusers", "datasets", "bitsandbytes"),
    *("triton", "lightning", "pytorch-ignite", "torchmetrics", "liger_kernel"),
    *("timm", "torchvision", "sentence-transformers", "torch_geometric", "flash-attn"),
)
_BY_VALUES = ("flash_",)
"""What is padding is left out: without values of the mask nothing is left to run."""


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
    parser.add_argument("file", type=Path)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--card", action="store_true", help="on this machine's GPU")
    arguments = parser.parse_args()
    path = arguments.file.resolve()
    known = json.loads(path.read_text()) if path.exists() else {"gpu": GPU, "scripts": {}}
    for script in sorted(SCRIPTS.glob("*.py")):
        if script.stem not in (arguments.name or {script.stem} - set(known["scripts"])):
            continue
        reads, found = _on_card(script) if arguments.card else _over_stub(script)
        if found is None:
            print(f"{script.stem} failed", file=sys.stderr)
            continue
        known["gpu"] = found.get("card", GPU)
        own = {"torch": found["torch"].split("+")[0], **_versions()}
        # Packages that are not here were there for the scripts that stay as they are.
        known["versions"] = {**known.get("versions", {}), **own}
        peaks = found["peaks"]
        known["scripts"][script.stem] = peaks if reads == "zeros" else {**peaks, "reads": reads}
        known["scripts"] = dict(sorted(known["scripts"].items()))
        _write(path, json.dumps(known, indent=1) + "\n")
        print(script.stem, flush=True)


def _write(path: Path, text: str) -> None:
    """Whole or not at all; what is recorded so far outlives a later script's failure."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text)
    beside.replace(path)


def _over_stub(script: Path) -> tuple[str, dict[str, Any] | None]:
    """The rule by which values were read, and what was found."""
    command = [
        *(sys.executable, "-m", "memcalc", "simulate", "--gpu", GPU, "--steps", "0"),
        *("--format", "json", "--", "python", str(script)),
    ]
    for reads in ("known",) if script.stem.startswith(_BY_VALUES) else ("zeros", "known"):
        done = _ran(command, {"MEMCALC_READS": reads, "MEMCALC_NO_CUDNN": "1"})
        if done:
            return reads, _peaks(json.loads(done))
    return reads, None


def _peaks(saved: dict[str, Any]) -> dict[str, Any]:
    phases = saved["phases"].values()
    rungs = ("requested", "allocated", "reserved")
    peaks = {rung: max(phase[f"peak_{rung}"] for phase in phases) for rung in rungs}
    return {"peaks": peaks, "torch": saved["versions"]["torch"]}


def _on_card(script: Path) -> tuple[str, dict[str, Any] | None]:
    with tempfile.NamedTemporaryFile("r") as told:
        done = _ran([sys.executable, "-c", _BARE, told.name, str(script)], {})
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
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
