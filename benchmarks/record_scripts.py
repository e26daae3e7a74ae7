"""Run the training scripts of benchmarks/scripts over the stand-in driver and write their peaks.

Usage: record_scripts.py FILE [NAME ...], with the Python that runs PyTorch's CUDA build over the
driver; NAMEs are scripts to record anew, all others stay as they are in FILE. cuDNN is off: it
cannot run there. A script that fails is left out and named.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
GPU = "H100 SXM"
TOTAL = 85020595611
"""Bytes of that GPU in configs/gpus.toml; some scripts ask for a part of them."""
RUNGS = ("requested", "allocated", "reserved")
_PACKAGES = ("transformers", "accelerate", "peft", "trl", "diffusers", "datasets", "triton")


def main(arguments: list[str]) -> None:
    if arguments[0] == "--one":
        _one(Path(arguments[1]), Path(arguments[2]))
    file, *names = arguments
    path = Path(file)
    known = json.loads(path.read_text()) if path.exists() else {"scripts": {}}
    import torch

    known["gpu"] = GPU
    known["versions"] = {"torch": torch.__version__.split("+")[0], **_versions()}
    for script in sorted(SCRIPTS.glob("*.py")):
        if names and script.stem not in names:
            continue
        peaks = _recorded(script)
        if peaks is None:
            print(f"{script.stem} failed", file=sys.stderr)
            continue
        known["scripts"][script.stem] = peaks
    known["scripts"] = dict(sorted(known["scripts"].items()))
    path.write_text(json.dumps(known, indent=1) + "\n")


def _recorded(script: Path) -> dict[str, int] | None:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "peaks.json"
        command = [sys.executable, __file__, "--one", str(result), str(script)]
        environment = {**os.environ, "STANDIN_TOTAL": str(TOTAL), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, check=False, timeout=600)
        return json.loads(result.read_text()) if done.returncode == 0 else None


def _one(result: Path, script: Path) -> None:
    """Run one script; its peaks are the highest, whether or not it resets them."""
    import torch

    torch.backends.cudnn.enabled = False
    peaks = dict.fromkeys(RUNGS, 0)

    def note() -> None:
        stats = torch.cuda.memory_stats()
        for rung in RUNGS:
            peaks[rung] = max(peaks[rung], stats.get(f"{rung}_bytes.all.peak", 0))

    reset = torch._C._cuda_resetPeakMemoryStats

    def noted_reset(device: int) -> None:
        note()
        reset(device)

    torch._C._cuda_resetPeakMemoryStats = noted_reset
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")
    note()
    result.write_text(json.dumps(peaks))
    sys.stdout.flush()
    os._exit(0)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
