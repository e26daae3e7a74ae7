"""How long whole commands take against what cannot be avoided, and whether that is within bounds.

    python benchmarks/startup.py [ROUNDS]

In every round (default 5) each command runs once, in turn, so that a machine that is busy for a
while is busy for all of them. Ratios are those of medians: of the wall clock, and of the processor
time of the command and its children, which other work on the machine disturbs less. The wall clock
of an idle machine is what the bounds are for. Each command has run once before, as for whoever
installed memcalc: bytecode of its modules is there, as it is of the libraries'.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

PYTHON = sys.executable
LIBRARIES = "import typer, rich.table"
MODEL = "import torch; from transformers import DistilBertForSequenceClassification"
MAIN = [PYTHON, "-m", "memcalc", "estimate", "distilbert-base-cased", "--optim", "adam8bit"]
LARGE = [PYTHON, "-m", "memcalc", "estimate", "meta-llama/Llama-3.1-405B", "--precision", "bf16"]
SHARDED = [
    *(PYTHON, "-m", "memcalc", "estimate", "meta-llama/Llama-3.1-70B", "--precision", "bf16"),
    *("--parallel", "fsdp2", "--devices", "8"),
]
COMMANDS = {
    "python -c 'import typer, rich.table'": [PYTHON, "-c", LIBRARIES],
    "memcalc --help": [PYTHON, "-m", "memcalc", "--help"],
    "estimate, answered from the cache": MAIN,
    "estimate --method analytic": [*MAIN, "--method", "analytic", "--no-cache"],
    "python -c (torch and the model class)": [PYTHON, "-c", MODEL],
    "estimate distilbert-base-cased, cold": [*MAIN, "--no-cache"],
    "estimate Llama-3.1-405B, cold": [*LARGE, "--no-cache"],
    "estimate Llama-3.1-70B FSDP2 x 8, cold": [*SHARDED, "--no-cache"],
}
BARE, HELP, CACHED, ANALYTIC, IMPORTS, COLD, LARGEST, SPREAD = COMMANDS


class Bound(NamedTuple):
    """A command may take so many times as long as its yardstick."""

    command: str
    yardstick: str
    most: float


BOUNDS = (
    Bound(HELP, BARE, 1.3),
    Bound(CACHED, BARE, 2.5),
    Bound(ANALYTIC, BARE, 2.5),
    Bound(COLD, IMPORTS, 1.0),
    Bound(LARGEST, COLD, 1.25),
    Bound(SPREAD, COLD, 1.5),
)


class Cost(NamedTuple):
    """What one run took."""

    wall: float
    cpu: float
    peak: float
    """Largest resident set of one process, in MiB."""


def once(command: list[str], environment: dict[str, str]) -> Cost:
    started = time.perf_counter()
    pid = os.posix_spawn(
        command[0],
        command,
        environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, command
    wall = time.perf_counter() - started
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def medians(rounds: int) -> dict[str, Cost]:
    seen: dict[str, list[Cost]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MEMCALC_CACHE": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for command in COMMANDS.values():
            subprocess.run(command, check=True, capture_output=True, env=environment)
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                seen[name].append(once(command, environment))
    return {
        name: Cost(*map(statistics.median, zip(*costs, strict=True)))
        for name, costs in seen.items()
    }


def main() -> None:
    found = medians(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    print(f"{'':40} {'wall':>8} {'cpu':>8} {'peak of a process':>20}")
    for name, cost in found.items():
        print(f"{name:40} {cost.wall:6.3f} s {cost.cpu:6.3f} s {cost.peak:16.1f} MiB")
    print()
    for bound in BOUNDS:
        one, other = found[bound.command], found[bound.yardstick]
        wall, cpu = one.wall / other.wall, one.cpu / other.cpu
        verdict = "within" if wall <= bound.most else "above"
        print(
            f"{bound.command:38} / {bound.yardstick:38} {wall:5.2f} of wall, {cpu:5.2f} of cpu: "
            f"{verdict} {bound.most}"
        )


if __name__ == "__main__":
    main()
