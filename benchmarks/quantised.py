"""How long a cold estimate over a quantised base takes, beside the same plan over one in bf16.

Usage: quantised.py [MODEL] [ROUNDS]. Each run is a process of its own without a cache; the CPU
seconds of the process and all its children are compared, the least of all rounds.
"""

from __future__ import annotations

import resource
import subprocess
import sys

PLAN = ("--batch", "1", "--seq", "2048", "--gpu", "rtx4090", "--no-cache", "--format", "json")
BOUND = 2.0
"""As many times longer it may take."""


def main(model: str = "llama-3.1-8b", rounds: str = "3") -> None:
    seconds = {
        preset: min(_seconds(model, preset) for _ in range(int(rounds)))
        for preset in ("lora", "qlora")
    }
    ratio = seconds["qlora"] / seconds["lora"]
    for preset, spent in seconds.items():
        print(f"{model} --preset {preset}: {spent:.1f} s of CPU")
    print(f"{ratio:.2f} times as long, at most {BOUND} wanted")
    raise SystemExit(ratio > BOUND)


def _seconds(model: str, preset: str) -> float:
    before = _spent()
    command = [sys.executable, "-m", "memcalc", "estimate", model, "--preset", preset, *PLAN]
    subprocess.run(command, check=True, capture_output=True)
    return _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
