"""Hold what others read on real cards (evidence/published) against memcalc's estimates.

    PYTHONPATH=benchmarks python benchmarks/judge_published.py -o evidence/judged.json
    python benchmarks/judge_published.py --with 4.46=FOLDER --packages FOLDER ...
    python benchmarks/judge_published.py --cudnn 2.8=FOLDER:FOLDER ...
    python benchmarks/judge_published.py --blind ...
    python benchmarks/judge_published.py --apart configs/transformers_apart.json

A reading belongs to the PyTorch and the transformers it was made with, which its plan names.
``--with`` names a folder that holds that transformers (``pip install --target FOLDER --no-deps
transformers==4.46.3``, and its tokenizers and huggingface_hub), whose own code runs then. Models of
packages that are not there are left out, with their reason. A source that ``runs`` a script of
benchmarks/published_scripts is judged by a run of it on a simulated GPU (``memcalc simulate``).
Where a source does not say all that such a run depends on, it names ``limits``: words for the
script that make it the least and the most that what is not said may be. Each is a run of its own,
and the range is that of all. ``--cudnn`` names folders with the cuDNN and cuBLAS that came with a
PyTorch, which are asked for the workspaces of convolutions of readings with it.
``--blind`` judges the sets too that were written down before any of them was estimated.
``--apart`` says how far readings that memcalc may be improved by (``tune``) lie from today's code,
which is what an answer for another release allows for.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from memcalc.catalog.releases import Apart
from memcalc.kernels import cudnn
from msgspec.structs import replace

from memcalc.accuracy.compare import Difference
from memcalc.children.ask import Parent
from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.client import trace_all
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Component, Phase
from memcalc.report.rows import process_ends
from memcalc.script.simulate import simulate, simulating_parent
from memcalc.version import installed

FOLDER = pathlib.Path(__file__).resolve().parent
PUBLISHED = FOLDER.parent / "evidence" / "published"
SCRIPTS = FOLDER / "published_scripts"
BESIDE = "allocated_and_outside"
"""What PyTorch's allocator had in use, and what the process held outside it."""
RUNGS = ("allocated", "reserved", "process_used", BESIDE)
BLIND = ("blind", "blind 2", "blind 3", "blind 4", "blind 5")
"""Written down with their plans before any of them was estimated, each judged once."""
SETS = ("tune", "report", "held out", *BLIND)
"""What a source's ``half`` may be."""
UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}
OLDEST = "2.0"
"""PyTorch that stands in for older ones and for those that are not said."""
FIXED = (
    *(Component.WEIGHTS, Component.QUANTISED_WEIGHTS, Component.QUANTISATION_CONSTANTS),
    *(Component.MASTER_WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATE),
)
"""What a model's code leaves alone."""
LOADING = {"loaded at the start": "eager"}
"""What a source says of kernels, as ``Plan.module_loading``."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One reading beside its estimate, in bytes."""

    source: str
    """Name of its file in ``evidence/published``."""
    gpu: str
    plan: str
    half: str
    rung: str
    published: int
    rounding: int = 0
    """Half of the last place that was printed, where the source says how many there are."""
    predicted: int | None = None
    low: int | None = None
    high: int | None = None
    """Ends of what is said; ``None``: one figure is said."""
    torch: str | None = None
    """PyTorch that the plan named."""
    transformers: str | None = None
    """The same of transformers; ``None``: the installed one."""
    cudnn: str | None = None
    """The cuDNN that was asked for workspaces; ``None``: they are looked up, or known in limits."""
    own_code: bool = False
    """That release's own code ran; else today's, with what it did otherwise."""
    reason: str | None = None
    """Why there is no estimate."""

    @property
    def relative(self) -> float | None:
        """Predicted less published, of the published."""
        if self.predicted is None:
            return None
        return Difference(
            name=self.rung, predicted=self.predicted, measured=self.published
        ).relative

    @property
    def inside(self) -> bool | None:
        """The range that is said holds the reading; ``None``: there is no range."""
        if self.low is None or self.high is None or self.low == self.high:
            return None
        return self.low - self.rounding <= self.published <= self.high + self.rounding


def rows_of(source: dict[str, Any]) -> Iterator[tuple[Plan, dict[str, int]]]:
    """The plans of one source, and what was read of each, in bytes."""
    unit = UNITS[source["unit"]]
    for row in source["rows"]:
        named = dict(zip(source["columns"], row, strict=True))
        read = {rung: round(named.pop(rung) * unit) for rung in RUNGS if rung in named}
        settings = {"gpu": source["gpu"], "torch": torch_of(source)}
        settings["transformers"] = release_of(source)
        settings["module_loading"] = LOADING.get(source.get("kernels"))
        if "runs" in source:
            words = ["python", str(SCRIPTS / source["runs"]), *named.pop("arguments").split()]
            settings |= {"command": shlex.join(words), "steps": 0}
        settings |= {**source["plan"], **named}
        yield msgspec.convert(settings, Plan), read


def judged(name: str, source: dict[str, Any]) -> Iterator[Judged]:
    """Estimates beside the readings of one source."""
    rows = list(rows_of(source))
    asked = cudnn.version() if cudnn.FOLDERS in os.environ else None
    for (plan, read), answer in zip(rows, answers([plan for plan, _ in rows]), strict=True):
        ends = at_limits(plan, source)
        for rung, published in read.items():
            told: dict[str, Any] = {}
            if isinstance(answer, Prediction):
                steps = source.get("peak") == "steps"
                told = within([said(one, rung, steps=steps) for one in (answer, *ends)])
            else:
                told["reason"] = str(answer).splitlines()[0][:200]
            yield Judged(
                source=name,
                gpu=source["gpu"],
                plan=label(plan),
                half=source["half"],
                torch=plan.torch,
                cudnn=asked,
                transformers=source.get("transformers"),
                own_code=plan.transformers is None and "transformers" in source,
                rung=rung,
                published=published,
                rounding=rounding_of(source),
                **told,
            )


def at_limits(plan: Plan, source: dict[str, Any]) -> list[Prediction]:
    """What is said where what the source leaves open is the least that it may be, and the most.

    A run that has no room there says nothing.
    """
    words = source.get("limits", {})
    runs = [f"{plan.command} {words[end]}" for end in ("least", "most") if end in words]
    found = [_of_script(replace(plan, command=command)) for command in runs]
    return [one for one in found if isinstance(one, Prediction)]


def within(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The first answer, with a range that holds the others and theirs."""
    likely, *others = told
    if not others:
        return likely
    lows, highs = ([one.get(end, one["predicted"]) for one in told] for end in ("low", "high"))
    low, high = min(lows), max(highs)
    # What is not said has no part in a figure that is the same at both limits.
    return {**likely, "low": low, "high": high} if low < high else likely


def answers(plans: list[Plan]) -> list[Prediction | Exception]:
    """What memcalc says of plans of one source, or why it says nothing."""
    if not any(plan.command for plan in plans):
        return list(trace_all(plans))
    return [_of_script(plan) for plan in plans]


@functools.cache
def _parent() -> Parent:
    """One that has its packages imported, for all scripts."""
    return simulating_parent()


def _of_script(plan: Plan) -> Prediction | Exception:
    try:
        found = simulate(plan, _parent())
    except MemcalcError as error:
        return error
    if found.traced is None or found.ending.code:
        return EstimateError(f"the script ended with exit code {found.ending.code}")
    return found.traced.prediction


def apart() -> Iterator[Apart]:
    """Readings of other releases that may be looked at, by the code of the installed one."""
    for path in sorted(PUBLISHED.glob("*.json")):
        source = json.loads(path.read_text())
        if source["half"] != "tune" or release_of(source) is None:
            continue
        rows = list(rows_of(source))
        for (plan, read), answer in zip(rows, answers([plan for plan, _ in rows]), strict=True):
            if isinstance(answer, Exception):
                raise answer
            yield Apart(
                source=path.stem,
                transformers=source["transformers"],
                plan=label(plan),
                published=read["allocated"],
                said=answer.peak.allocated or 0,
                fixed=sum(answer.components.get(name, 0) for name in FIXED),
            )


def elsewhere(name: str, folders: list[str], libraries: str | None = None) -> list[Judged]:
    """The same by a process that finds its packages, and cuDNN, in other folders first."""
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        command = [sys.executable, __file__, name, "-o", output.name]
        environment = {**os.environ, "PYTHONPATH": path}
        if libraries is not None:
            environment[cudnn.FOLDERS] = libraries
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return msgspec.json.decode(pathlib.Path(output.name).read_bytes(), type=list[Judged])


def rounding_of(source: dict[str, Any]) -> int:
    """Bytes by which a figure may lie from what was printed of it (``digits`` behind the point)."""
    places = source.get("digits")
    return 0 if places is None else round(UNITS[source["unit"]] / 10**places / 2)


def torch_of(source: dict[str, Any]) -> str:
    """The PyTorch that a source says, or the oldest that memcalc answers for."""
    said = source.get("torch") or OLDEST
    return OLDEST if said.startswith(("0.", "1.")) else said


def release_of(source: dict[str, Any]) -> str | None:
    """The transformers that a source says; ``None`` where it is the one that runs."""
    said = source.get("transformers")
    return None if said and (installed("transformers") or "").startswith(said) else said


def said(answer: Prediction, rung: str, *, steps: bool = False) -> dict[str, Any]:
    """The figure of a rung, and its range where it has one.

    Args:
        answer: what memcalc says.
        rung: which figure was read.
        steps: the source set the peak back once everything was loaded.
    """
    if rung == BESIDE:
        held, beside = answer.peak.allocated or 0, answer.context
        if beside is None or beside.likely is None:
            return {"reason": "what is outside the allocator is not known"}
        ends = {"low": held + beside.low, "high": held + beside.high}
        return {"predicted": held + beside.likely, **ends}
    told: dict[str, Any] = {"predicted": getattr(answer.peak, rung)}
    span = {"allocated": answer.allocated, "reserved": answer.allocator}.get(rung)
    if steps:
        later = [phase for phase in answer.phases if phase.phase is not Phase.LOAD]
        highest = max(getattr(phase, rung) for phase in later)
        span = None if highest != told["predicted"] else span
        told = {"predicted": highest}
    if span is not None:
        told |= {"low": span.low, "high": span.high}
    ends = process_ends(answer) if rung == "process_used" else None
    if ends is not None:
        told |= {"low": ends[0], "high": ends[1]}
    return told


def label(plan: Plan) -> str:
    """A plan in a few words."""
    if plan.command:
        script, *arguments = shlex.split(plan.command)[1:]
        return " ".join([pathlib.Path(script).stem, *arguments])
    words = [plan.model.removeprefix("published_models:"), f"batch={plan.batch}"]
    shown = ("seq", "precision", "optim", "grad_accum", "checkpointing", "loop", "lora")
    plain = Plan()
    for field in shown:
        value = getattr(plan, field)
        if value != getattr(plain, field):
            words.append(field if value is True else f"{field}={value}")
    return " ".join(words)


def summary(rows: list[Judged]) -> dict[str, Any]:
    """Median and 90th percentile of the errors, and the share that the ranges hold."""
    errors = sorted(abs(row.relative) for row in rows if row.relative is not None)
    inside = [row.inside for row in rows if row.inside is not None]
    if not errors:
        return {"readings": 0}
    return {
        "readings": len(errors),
        "median": statistics.median(errors),
        "p90": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "inside": sum(inside),
        "ranges": len(inside),
    }


def write(rows: Sequence[msgspec.Struct], path: pathlib.Path) -> None:
    """One reading a line."""
    path.write_text(f"[\n{_lines(rows)}\n]\n")


def _lines(rows: Sequence[msgspec.Struct]) -> str:
    return ",\n".join(json.dumps(msgspec.to_builtins(row)) for row in rows)


def chosen(names: Sequence[str], *, blind: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sources that are named, or all; the blind sets only where they are asked for."""
    for path in sorted(PUBLISHED.glob("*.json")):
        source = json.loads(path.read_text())
        if path.stem in names or (not names and (blind or source["half"] not in BLIND)):
            yield path.stem, source


def main() -> None:
    """Judge all sources and say how good the estimates are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="sources; all if none is named")
    parser.add_argument("--with", dest="versions", action="append", default=[], metavar="V=FOLDER")
    parser.add_argument("--packages", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--cudnn", action="append", default=[], metavar="TORCH=FOLDERS")
    parser.add_argument("--blind", action="store_true", help="with no name: the blind sets too")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--apart", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.apart:
        arguments.apart.write_text(f'{{"readings": [\n{_lines(list(apart()))}\n]}}\n')
        return
    folders = dict(text.split("=", 1) for text in arguments.versions)
    libraries = dict(text.split("=", 1) for text in arguments.cudnn)
    every: list[Judged] = []
    for name, source in chosen(arguments.names, blind=arguments.blind):
        others = [folders[v] for v in (source.get("transformers"),) if v in folders]
        others += arguments.packages
        library = libraries.get(source.get("torch") or "")
        if others or library:
            rows = elsewhere(name, [*others, str(FOLDER)], library)
        else:
            rows = list(judged(name, source))
        if any(row.reason and row.own_code for row in rows):
            today = judged(name, source)
            rows = [now if own.reason else own for own, now in zip(rows, today, strict=True)]
        every += rows
        if arguments.output:
            write(every, arguments.output)
        print(name, summary(rows), *{r.reason for r in rows if r.reason}, flush=True)
    for half in SETS:
        print(half, summary([row for row in every if row.half == half]))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
