"""Injects faults into real commands on the CPU, gives them bad inputs, and holds their promises.

After every fault in ``memcalc measure``: no traceback, an exit code that is one of memcalc's, no
process left behind, and a result file that can be read and has every run that had finished. After
every bad input, output or surrounding of any verb (bad_inputs.py): the right exit code, no
traceback, no file changed or left behind, no process left, no code of a file run.

    python benchmarks/faults.py --count 26 --seed 1 --output evidence/faults.json
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable

import bad_inputs
from fault_case import Case, judge_output, kill, write_cases

CODES = {0, 2, 3, 124, 130}


def _kill_some(case: Case, which: Callable[[list], list], number: int) -> None:
    case.wait()
    kill(which(case.processes()), number)


def kill_the_run(case: Case) -> None:
    number = case.random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
    _kill_some(case, lambda pids: pids[2:3], number)


def kill_what_forks_the_runs(case: Case) -> None:
    _kill_some(case, lambda pids: pids[1:2], signal.SIGKILL)


def end_the_command(number: int) -> Callable[[Case], None]:
    def end(case: Case) -> None:
        case.killed = True
        _kill_some(case, lambda pids: pids[:1], number)

    return end


def press_ctrl_c_late(case: Case) -> None:
    while case.started.poll() is None and not case.runs():
        time.sleep(0.05)
    case.killed = True
    time.sleep(case.random.uniform(0, case.span / 3))
    case.started.send_signal(signal.SIGINT)


def take_the_folder_away(case: Case) -> None:
    case.wait()
    shutil.rmtree(case.folder / "results", ignore_errors=True)


def nothing(case: Case) -> None:
    """The fault is in how the command was started."""


FAULTS: list[tuple[str, Callable[[Case], None], dict]] = [
    ("the run is killed", kill_the_run, {}),
    ("the process that forks the runs is killed", kill_what_forks_the_runs, {}),
    ("memcalc is killed", end_the_command(signal.SIGKILL), {}),
    ("memcalc is asked to end", end_the_command(signal.SIGTERM), {}),
    ("Ctrl-C at any moment", end_the_command(signal.SIGINT), {}),
    ("Ctrl-C after the first run", press_ctrl_c_late, {}),
    ("the answer pipe carries rubbish", nothing, {"middle": "Babbles"}),
    ("the disk is full from the start", nothing, {"file_limit": 16}),
    ("the disk fills up", nothing, {"file_limit": 6000}),
    ("the results' folder disappears", take_the_folder_away, {}),
    ("the results' folder never was", nothing, {"output": "nowhere/out.json"}),
    ("the NVIDIA driver fails", nothing, {"driver": {"wanted": "yes"}}),
    ("a run hangs until its timeout", nothing, {"middle": "Slow", "options": ["--timeout", "3"]}),
]


def inject(number: int, seed: int, span: float) -> dict:
    """Run one command with one fault; says what broke, if anything."""
    name, fault, settings = FAULTS[number % len(FAULTS)]
    chance = random.Random(f"{seed}-{number}")
    with tempfile.TemporaryDirectory(prefix="memcalc-fault-") as folder:
        case = Case(
            pathlib.Path(folder), chance, f"{os.getpid()}-{seed}-{number}", span, **settings
        )
        case.start()
        before: list[str] = []
        fault_began = time.monotonic()
        fault(case)
        if fault is not take_the_folder_away:
            before = case.runs() or []
        out, err = (stream.decode() for stream in case.started.communicate(timeout=120))
        return {
            "number": number,
            "fault": name,
            "after": round(time.monotonic() - fault_began, 1),
            "code": case.started.returncode,
            "finished": len(before),
            "broken": _judge(case, before, out + err),
        }


def give(number: int, case: bad_inputs.Bad) -> dict:
    """Run one command with a bad input; says what broke, if anything."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="memcalc-input-") as folder:
        mark = f"{os.getpid()}-input-{number}"
        code, broken = bad_inputs.attempt(case, pathlib.Path(folder), mark)
    after = round(time.monotonic() - began, 1)
    return {"number": number, "fault": case.name, "after": after, "code": code, "broken": broken}


def _judge(case: Case, before: list[str], said: str) -> list[str]:
    allowed = CODES | ({-2, -9, -15} if case.killed else set())
    broken = judge_output(said, case.started.returncode, allowed) + case.left()
    try:
        lost = set(before) - set(case.runs() or [])
    except Exception as error:
        return [*broken, f"the file cannot be read: {error}"]
    return [*broken, *(f"lost {plan}" for plan in lost)]


def time_without_a_fault(seed: int) -> float:
    """Seconds that the command takes when it is left alone."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="memcalc-fault-") as folder:
        case = Case(pathlib.Path(folder), random.Random(seed), f"{os.getpid()}-clean", 0.0)
        case.start()
        case.started.communicate(timeout=120)
        assert case.started.returncode == 0
        assert len(case.runs()) == 3
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=26)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    span = time_without_a_fault(arguments.seed)
    results = []
    for number in range(arguments.count):
        results.append(inject(number, arguments.seed, span))
        print(json.dumps(results[-1]), flush=True)
    for number, case in enumerate(bad_inputs.CASES, start=arguments.count):
        results.append(give(number, case))
        print(json.dumps(results[-1]), flush=True)
    kinds = collections.Counter(result["fault"] for result in results)
    write_cases(arguments.output, {"seed": arguments.seed, "span": span, "faults": kinds}, results)


if __name__ == "__main__":
    main()
