"""Everything that is to be recorded on a machine with a GPU, in one call.

    python benchmarks/on_gpu.py FOLDER [--minutes 9.5] [PART ...]
    python benchmarks/on_gpu.py FOLDER --rehearse     over the stub driver, where there is no GPU
    python benchmarks/on_gpu.py FOLDER --compare

Every part is a command of its own with its share of the time. What it has recorded by then is in
FOLDER (PART.json), what it printed in FOLDER/log.txt, and how it ended in FOLDER/parts.json. A part
whose package is missing fails alone. Nothing is estimated there: with --compare, which needs no
GPU, what was recorded is held against the estimates.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, NamedTuple

HERE = Path(__file__).parent
SUITES = HERE.parent / "configs" / "suites"


class Part(NamedTuple):
    """A command, and its share of the time."""

    share: float
    command: tuple[str, ...]
    compared: tuple[str, ...] = ()
    """What holds its file against the estimates, once it is there."""


def _own(script: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / script), *arguments)


def _memcalc(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "memcalc", *arguments)


def parts(folder: Path) -> dict[str, Part]:
    """By name, the worthiest first."""

    def at(name: str) -> str:
        return str(folder / f"{name}.json")

    def measured(share: float, name: str, suite: str) -> Part:
        file = str(SUITES / f"{suite}.toml")
        run = ("measure", "--suite", file, "--no-estimate", "-o", at(name), "--continue")
        return Part(share, _memcalc(*run), _memcalc("compare", at(name)))

    def recorded(share: float, name: str, suite: str, every: int) -> Part:
        file = str(SUITES / f"{suite}.toml")
        run = _own("record_standin.py", "--every", str(every), file, at(name), name)
        return Part(share, run, _own("accuracy.py", at(name)))

    return {
        "doctor": Part(0.2, _memcalc("doctor")),
        "context": Part(0.3, _own("context_ladder.py", at("context"))),
        "suite": measured(3.0, "suite", "evidence"),
        "scripts": Part(
            1.5,
            _own("record_scripts.py", "--card", at("scripts"), "scripts"),
            _own("record_scripts.py", "--compare", at("scripts"), "scripts"),
        ),
        "optimizers": Part(0.7, _own("optim.py", "--device", "cuda", "--json", at("optimizers"))),
        "loops": recorded(1.0, "loops", "standin-loops", 1),
        "quantized": recorded(0.8, "quantized", "standin-quant", 5),
        "convolutions": recorded(0.8, "convolutions", "standin_cudnn", 2),
        "decode": measured(0.7, "decode", "decode"),
    }


_REHEARSED = """
import os
from memcalc.catalog import gpus
from memcalc.engine import driver, simulated_gpu
from memcalc.catalog.gpus import Target
card = gpus.find("H100 SXM")
target = Target(capability=(9, 0), multiprocessors=132, torch=(2, 11))
os.environ.update(simulated_gpu.settings(card, target, room=card.memory))
driver.open_stub()
"""
"""Opens the stub driver in every Python that starts, before it imports PyTorch."""


def rehearsed(folder: Path) -> dict[str, str]:
    """Variables with which the parts run over the stub driver."""
    (folder / "stub").mkdir(exist_ok=True)
    (folder / "stub" / "sitecustomize.py").write_text(_REHEARSED)
    path = (str(folder / "stub"), str(HERE.parent), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def record(
    folder: Path, chosen: dict[str, Part], minutes: float, variables: dict[str, str]
) -> None:
    """Run the parts one after the other; time that one leaves goes to the next."""
    environment = {"STANDIN_CUDNN": "on a GPU", "HF_HUB_OFFLINE": "1", **os.environ, **variables}
    ended: dict[str, object] = {}
    left, shares = 60 * minutes, sum(part.share for part in chosen.values())
    with (folder / "log.txt").open("a") as log:
        for name, part in chosen.items():
            began = time.monotonic()
            log.write(f"== {name}\n")
            log.flush()
            code = _run(part.command, environment, log, left * part.share / shares)
            took = time.monotonic() - began
            left, shares = left - took, shares - part.share
            ended[name] = {"code": code, "seconds": round(took, 1)}
            (folder / "parts.json").write_text(json.dumps(ended, indent=1) + "\n")
            said = "ran out of time" if code is None else f"ended with {code}"
            print(f"{name} {said} after {took:.0f} s", flush=True)


def _run(
    command: tuple[str, ...], environment: dict[str, str], log: IO[str], seconds: float
) -> int | None:
    """The exit code; ``None``: it ran out of time, and was ended with all it had started."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", nargs="*")
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--rehearse", action="store_true", help="over the stub driver")
    arguments = parser.parse_intermixed_args()
    folder = arguments.folder.resolve()
    every = parts(folder)
    unknown = [name for name in arguments.part if name not in every]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; choose from {', '.join(every)}")
    chosen = {name: every[name] for name in arguments.part or every}
    if not arguments.compare:
        folder.mkdir(parents=True, exist_ok=True)
        record(folder, chosen, arguments.minutes, rehearsed(folder) if arguments.rehearse else {})
        return
    for name, part in chosen.items():
        if part.compared and (folder / f"{name}.json").exists():
            print(f"== {name}", flush=True)
            subprocess.run(part.compared, check=False)


if __name__ == "__main__":
    main()
