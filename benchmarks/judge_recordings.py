"""Hold recorded runs against the engine's, phase by phase, under the PyTorch they are of.

python benchmarks/judge_recordings.py [--torch-root DIR] [--recording NAME] TABLE...

A run is equal when PyTorch's counters had the same highest levels in each phase of each step. DIR
holds an unpacked PyTorch, as pip install --target makes it.
"""

import argparse
import multiprocessing
import pathlib
import sys
import time
import types
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import tables

RUNGS = ("requested", "allocated", "reserved")
Peaks = dict[tuple[int, str], tuple[int, ...]]
"""By step and phase: bytes on each of ``RUNGS``."""
CARDS = {"7.5": "T4", "8.0": "A100-80GB", "8.9": "RTX-4090", "9.0": "H200", "10.0": "B200"}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How one recorded run compares."""

    index: int
    """Its place in the recording."""
    label: str
    recorded: Peaks
    seen: Peaks
    """Empty: the engine failed."""
    error: str = ""
    seconds: float = 0.0

    @property
    def differences(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """Bytes more than were recorded, where that is not zero on every rung."""
        none = (0,) * len(RUNGS)
        return {
            key: tuple(a - b for a, b in zip(self.seen.get(key, none), levels, strict=True))
            for key, levels in self.recorded.items()
            if self.seen.get(key) != levels
        }

    @property
    def equal(self) -> bool:
        """No phase differs on any rung."""
        return not self.error and not self.differences

    @property
    def off(self) -> float:
        """The largest relative difference of the highest level of a rung."""
        seen = [self.seen[key] for key in self.recorded if key in self.seen]
        pairs = (
            (max(one[at] for one in seen), max(one[at] for one in self.recorded.values()))
            for at in range(len(RUNGS))
        )
        return max(abs(ours / recorded - 1) for ours, recorded in pairs)

    def within(self, tolerance: float) -> bool:
        """Equal, or each rung's highest level is as far off at most."""
        return self.equal or (not self.error and tolerance > 0 and self.off <= tolerance)

    def words(self) -> str:
        """A line for people."""
        start = f"{self.index:3} {self.seconds:5.1f} s {self.label}"
        if self.error:
            return f"{start}: ERROR {self.error}"
        if self.equal:
            return f"{start}: equal"
        start = f"{start}: peaks {self.off:.3%} off"
        shown = list(self.differences.items())[:4]
        more = "; ".join(f"{phase} {step}: {off}" for (step, phase), off in shown)
        return f"{start}: different in {len(self.differences)} of {len(self.recorded)}: {more}"


def open_driver(torch_root: str | None = None) -> None:
    """Load the stub driver for the PyTorch that is judged; no PyTorch is imported before.

    Args:
        torch_root: a folder to import PyTorch from; ``None``: the installed one.
    """
    from memcalc.engine import driver

    if torch_root is not None:
        sys.path.insert(0, torch_root)
    driver.open_stub()


def judge(recording: dict[str, Any], chosen: list[int] | None = None) -> Iterator[Verdict]:
    """Run recorded plans again, one after the other.

    Args:
        recording: one of a table.
        chosen: places of runs; ``None``: all of them.
    """
    for index in range(len(recording["runs"])) if chosen is None else chosen:
        yield _judged(recording, index)


def _judged(recording: dict[str, Any], index: int) -> Verdict:
    from msgspec.structs import replace

    from memcalc.engine.stub import load as stub
    from memcalc.engine.values import library_checks
    from memcalc.files.artifact import decode
    from memcalc.records.plan import Plan

    # Positions were zero when these runs were recorded, so transformers took rows for several
    # sequences and made masks.
    library_checks.skip_packed_sequences = lambda patches: None
    # Over the stand-in driver all work had finished at once: FSDP1 and ZeRO-3 let streams wait.
    stub.function("keep_up", None)()

    run, environment = recording["runs"][index], recording["environment"]
    plan = decode(Plan, run["plan"])
    plan = replace(plan, gpu=CARDS[environment["capability"]], rank=run.get("rank", plan.rank))
    recorded = {(step, phase): tuple(levels) for step, phase, levels in tables.phases_of(run)}
    began = time.monotonic()
    seen: Peaks = {}
    # CUDA over the stub driver belongs to the fork then, and to no other run.
    context = multiprocessing.get_context("fork")
    heard, told = context.Pipe(duplex=False)
    fork = context.Process(target=_run, args=(plan, recording, told))
    fork.start()
    told.close()
    try:
        readings, error = heard.recv()
        seen = tables.highest(readings)
    except EOFError:
        error = "the run died"
    fork.join()
    return Verdict(
        index=index,
        label=label(plan),
        recorded=recorded,
        seen=seen,
        error=error,
        seconds=time.monotonic() - began,
    )


def _run(plan: Any, recording: dict[str, Any], told: Connection) -> None:
    """Run a plan on a recording's card; tell the levels of its phases."""
    from msgspec.structs import replace

    from memcalc.children.child import Breadcrumbs
    from memcalc.engine import ranks
    from memcalc.errors import MemcalcError
    from memcalc.estimation.question import look_up
    from memcalc.estimation.worker import SimulatedRun
    from memcalc.workload import layouts

    try:
        question = look_up(plan)
        processors = int(recording["environment"]["multiprocessors"])
        target = replace(question.target, multiprocessors=processors)
        speaker: Any = types.SimpleNamespace(breadcrumbs=Breadcrumbs())
        # A number is the version of a cuDNN that had no functions: it was not used. Over the
        # stand-in driver all that a program reads from the GPU was zero.
        cudnn = not recording["settings"].get("STANDIN_CUDNN", "0").isdigit()
        how = {"follows_values": False, "uses_cudnn": cudnn}
        traces = SimulatedRun(replace(question, target=target), speaker, how).trace_ranks()
        found = ranks.largest(traces, layouts.spread(plan).world)
    except MemcalcError as error:
        told.send(((), f"{type(error).__name__}: {error}"))
        return
    levels = ((one.step, one.phase.value, one) for one in found.readings)
    rows = [(step, phase, *(getattr(one, rung) for rung in RUNGS)) for step, phase, one in levels]
    told.send((rows, ""))


def label(plan: Any) -> str:
    """What a plan sets, in words."""
    from memcalc.records.fields import changed_settings

    skipped = ("model", "gpu", "torch", "batch", "seq", "cudnn_attention")
    told = {name: v for name, v in changed_settings(plan).items() if name not in skipped}
    return " ".join((plan.model, *(f"{name}={_plain(value)}" for name, value in told.items())))


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join("=".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in value)
    return str(value)


def main() -> int:
    """Print each run's verdict; 0: all are equal, or as near as was asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="+", type=pathlib.Path, metavar="TABLE")
    parser.add_argument("--recording", action="append", help="name; all of the tables without any")
    parser.add_argument("--torch-root", help="folder of an unpacked PyTorch")
    parser.add_argument("--runs", help="places of runs, such as 0,3 or 10:20 or ::5")
    parser.add_argument(
        "--within", type=float, default=0.0, help="accept peaks of runs that are off by this part"
    )
    parser.add_argument("--quiet", action="store_true", help="print no run that is equal")
    options = parser.parse_args()
    open_driver(options.torch_root)
    failed = 0
    for name, recording in tables.read_recordings(options.tables).items():
        # Recordings of whole scripts and of generations have no settings.
        chosen = options.recording or [name]
        if name not in chosen or "settings" not in recording:
            continue
        equal = off = errors = 0
        for one in judge(recording, _places(len(recording["runs"]), options.runs)):
            equal, off = equal + one.equal, off + (not one.equal and not one.error)
            errors += bool(one.error)
            failed += not one.within(options.within)
            if not (options.quiet and one.equal):
                print(one.words(), flush=True)
        print(f"{name}: {equal} equal, {off} off, {errors} failed", flush=True)
    return min(failed, 1)


def _places(count: int, text: str | None) -> list[int] | None:
    if text is None:
        return None
    every = range(count)
    if ":" in text:
        return list(every[slice(*(int(word) if word else None for word in text.split(":")))])
    return [every[int(word)] for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
