"""Wall time of ``memcalc fit`` against one cold estimate, and of what it leaves behind.

    python benchmarks/fit.py [RUNS]

Every command starts with an empty cache, but for the last: an estimate of a batch that was never
traced, after a fit of the same program. Each runs RUNS times (default 3); medians are printed.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

MEMCALC = [sys.executable, "-m", "memcalc"]
MODELS = ("distilbert-base-cased", "gpt2", "meta-llama/Llama-3.1-8B")
PLANS = {
    "meta-llama/Llama-3.1-8B": ["--gpu", "h200", "--precision", "bf16", "--optim", "adam8bit"],
}


def seconds(command: list[str], cache: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "MEMCALC_CACHE": cache}
    )
    return time.perf_counter() - started


def once(model: str) -> dict[str, float]:
    plan = PLANS.get(model, ["--gpu", "t4"])
    commands = {
        "estimate": ["estimate", model, *plan],
        "fit --find batch": ["fit", model, *plan, "--find", "batch"],
        "fit --find seq": ["fit", model, *plan, "--find", "seq"],
        "fit": ["fit", model, *plan],
    }
    commands["fit --grid"] = ["fit", model, *plan, "--grid"]
    taken = {}
    for name, command in commands.items():
        with tempfile.TemporaryDirectory() as cache:
            taken[name] = seconds([*MEMCALC, *command], cache)
            if name == "fit":
                later = ["estimate", model, *plan, "--batch", "11", "--seq", "264"]
                taken["estimate of another batch, after fit"] = seconds([*MEMCALC, *later], cache)
    return taken


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for model in MODELS:
        seen = [once(model) for _ in range(runs)]
        cold = statistics.median(taken["estimate"] for taken in seen)
        print(model)
        for name in seen[0]:
            median = statistics.median(taken[name] for taken in seen)
            print(f"  {name:38} {median:7.2f} s  {median / cold:5.2f} x one cold estimate")


if __name__ == "__main__":
    main()
