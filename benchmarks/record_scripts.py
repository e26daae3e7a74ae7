"""Run the training scripts of benchmarks/scripts over the stub driver and write their peaks.

Usage: record_scripts.py FILE PYTHON [NAME ...]: PYTHON has PyTorch's CUDA build, and NAMEs are
scripts to record anew; all others stay as they are in FILE, which is written after each script. A
script that fails where all values are zeros is recorded with those known that it put on the GPU, by
the rule of simulate (`reads`); one that fails then too is left out and named.

compare_scripts.py holds such a file against what is simulated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


def main(file: str, python: str, *names: str) -> None:
    path = Path(file)
    known = json.loads(path.read_text()) if path.exists() else {"scripts": {}}
    known["gpu"] = GPU
    for script in sorted(SCRIPTS.glob("*.py")):
        if names and script.stem not in names:
            continue
        for reads in _ways(script):
            found = _recorded(script, python, reads)
            if found is not None and not found["code"]:
                break
        else:
            print(f"{script.stem} failed", file=sys.stderr)
            continue
        own = {"torch": found["torch"].split("+")[0], **_versions()}
        # Packages that are not here were there for the scripts that stay as they are.
        known["versions"] = {**known.get("versions", {}), **own}
        peaks: dict[str, object] = found["peaks"]  # type: ignore[assignment]
        known["scripts"][script.stem] = peaks if reads == "zeros" else {**peaks, "reads": reads}
        known["scripts"] = dict(sorted(known["scripts"].items()))
        _write(path, json.dumps(known, indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    """Whole or not at all; what is recorded so far outlives a later script's failure."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text)
    beside.replace(path)


def _ways(script: Path) -> tuple[str, ...]:
    return ("known",) if script.stem.startswith(_BY_VALUES) else ("zeros", "known")


def _recorded(script: Path, python: str, reads: str) -> dict[str, object] | None:
    command = [
        *(sys.executable, "-m", "memcalc", "simulate", "--python", python),
        *("--gpu", GPU, "--steps", "0", "--format", "json", "--", "python", str(script)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "MEMCALC_READS": reads},
                stdout=subprocess.PIPE,
                check=False,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            # Where all values are zeros, some loops never end.
            return None
    return json.loads(done.stdout) if done.stdout else None


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
