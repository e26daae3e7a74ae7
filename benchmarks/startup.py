"""Wall time and memory of whole commands against what cannot be avoided.

    python benchmarks/startup.py [RUNS]

Each command runs RUNS times (default 5) in turn with its yardstick; medians are printed.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

PYTHON = sys.executable
IMPORTS = "import torch; from transformers import DistilBertForSequenceClassification"
MAIN = [PYTHON, "-m", "memcalc", "estimate", "distilbert-base-cased", "--optim", "adam8bit"]
LARGE = [PYTHON, "-m", "memcalc", "estimate", "meta-llama/Llama-3.1-405B", "--precision", "bf16"]
CASES = {
    "python -c pass": [PYTHON, "-c", "pass"],
    "memcalc --help": [PYTHON, "-m", "memcalc", "--help"],
    "memcalc list optimizers": [PYTHON, "-m", "memcalc", "list", "optimizers"],
    "estimate --method analytic": [*MAIN, "--method", "analytic", "--no-cache"],
    "estimate, answered from the cache": MAIN,
    "python -c (torch and the model class)": [PYTHON, "-c", IMPORTS],
    "estimate distilbert-base-cased, cold": [*MAIN, "--no-cache"],
    "estimate Llama-3.1-405B, cold": [*LARGE, "--no-cache"],
}


def once(command: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Seconds and the peak of resident bytes of the command's own process."""
    started = time.perf_counter()
    pid = os.posix_spawn(
        command[0],
        command,
        environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, command
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MEMCALC_CACHE": folder}
        subprocess.run(MAIN, check=True, capture_output=True, env=environment)
        seen: dict[str, list[tuple[float, int]]] = {name: [] for name in CASES}
        for _ in range(runs):
            for name, command in CASES.items():
                seen[name].append(once(command, environment))
    medians = {name: statistics.median(t for t, _ in values) for name, values in seen.items()}
    for name, values in seen.items():
        rss = statistics.median(size for _, size in values) / (1 << 20)
        print(f"{name:40} {medians[name]:6.3f} s {rss:8.1f} MiB (its own process)")
    base = medians["python -c (torch and the model class)"]
    cold = medians["estimate distilbert-base-cased, cold"]
    print(f"cold estimate / bare imports: {cold / base:.2f}")
    print(f"405B / DistilBERT: {medians['estimate Llama-3.1-405B, cold'] / cold:.2f}")


if __name__ == "__main__":
    main()
