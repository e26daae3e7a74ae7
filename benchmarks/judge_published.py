"""Hold what others read on real cards (evidence/published) against memcalc's estimates.

    PYTHONPATH=evidence/programs python benchmarks/judge_published.py -o evidence/judged.json
    python benchmarks/judge_published.py --most 2 --sets tune report ...

Every reading is judged under the releases of PyTorch and transformers it was made with, in the
newest patch of each, which memcalc fetches once (``MEMCALC_CACHE``, about 2 GB a release). A
reading of a PyTorch that memcalc does not run is refused, and counted apart; one whose source says
no PyTorch is judged under the oldest that memcalc runs. A source that ``runs`` a script of
evidence/programs is judged by ``memcalc simulate``. Where a source does not say all that
such a run depends on, it names ``limits``: words for the script that make it the least and the most
that what is not said may be. Each is a run of its own, and the range is that of all.

Readings that were not judged this time keep their rows in the file. ``--most`` judges so many
readings of each source, evenly spread. A package that a source ``needs`` in a certain release is
installed alone into ``MEMCALC_CACHE/needs``; one without a release must be installed here.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

from memcalc.accuracy.compare import Difference
from memcalc.engine import environment
from memcalc.engine.environment.releases import OLDEST_TORCH
from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.engine import engine
from memcalc.files import cache
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Phase
from memcalc.report.rows import process_ends
from memcalc.script.simulate import simulate

EVIDENCE = pathlib.Path(__file__).resolve().parent.parent / "evidence"
PUBLISHED = EVIDENCE / "published"
SCRIPTS = EVIDENCE / "programs"
BESIDE = "allocated_and_outside"
"""What PyTorch's allocator had in use, and what the process held outside it."""
RUNGS = ("allocated", "reserved", "process_used", BESIDE)
SETS = (
    *("tune", "report", "held out"),
    *("blind", "blind 2", "blind 3", "blind 4", "blind 5"),
)
"""What a source's ``half`` may be."""
UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}
OLDEST = ".".join(map(str, OLDEST_TORCH))
"""PyTorch that readings run under whose source says none."""
NEXT_TO_OLD = "4.57"
"""The last transformers that PyTorch before 2.6 runs."""
LOADING = {"loaded at the start": "eager"}
"""What a source says of kernels, as ``Plan.module_loading``."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """Releases whose own code gave an estimate."""

    torch: str
    transformers: str | None = None


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
    """PyTorch of the reading; ``None``: its source says none."""
    transformers: str | None = None
    ran: Ran | None = None
    """What ran; ``None``: nothing did, or an earlier memcalc gave the figure by tables."""
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
    torch = release_of(source.get("torch")) or OLDEST
    for row in source["rows"]:
        named = dict(zip(source["columns"], row, strict=True))
        read = {rung: round(named.pop(rung) * unit) for rung in RUNGS if rung in named}
        settings = {"gpu": source["gpu"], "torch": torch}
        settings["transformers"] = release_of(source.get("transformers"))
        if settings["transformers"] is None and numbers(torch) < (2, 6):
            settings["transformers"] = NEXT_TO_OLD
        settings["module_loading"] = LOADING.get(source.get("kernels"))
        if "runs" in source:
            words = ["python", str(SCRIPTS / source["runs"]), *named.pop("arguments").split()]
            settings |= {"command": shlex.join(words), "steps": 0}
        settings |= {**source["plan"], **named}
        yield msgspec.convert(settings, Plan), read


def release_of(version: str | None) -> str | None:
    """The release of a version, without its patch: the newest patch of it runs."""
    found = re.match(r"\d+\.\d+", version or "")
    return found[0] if found else None


def numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def refused(source: dict[str, Any]) -> str | None:
    """Why a source's PyTorch cannot be run; ``None``: it can, or none is said."""
    said = release_of(source.get("torch"))
    if said is None or numbers(said) >= OLDEST_TORCH:
        return None
    return f"refused: memcalc runs PyTorch {OLDEST} and newer, and this was read with {said}"


def judged(
    name: str, source: dict[str, Any], before: Sequence[Judged], most: int | None = None
) -> Iterator[Judged]:
    """Estimates beside the readings of one source.

    Args:
        name: of the source.
        source: what its file says.
        before: its rows as they were judged before; those not judged now are taken from here.
        most: so many of its plans are run, evenly spread; ``None``: all.
    """
    rows = list(rows_of(source))
    reason = refused(source)
    wanted = spread(len(rows), None if reason else most)
    old = iter(before)
    with patch.dict(os.environ, PYTHONPATH=installed(source)):
        for index, (plan, read) in enumerate(rows):
            kept = [row for _, row in zip(read, old, strict=False)]
            if index not in wanted:
                yield from kept
                continue
            answer, ends, ran = answered(plan, source, reason)
            for rung, published in read.items():
                told: dict[str, Any] = {"reason": str(answer).splitlines()[0][:200]}
                if isinstance(answer, Prediction):
                    steps = source.get("peak") == "steps"
                    told = within([said(one, rung, steps=steps) for one in (answer, *ends)])
                yield Judged(
                    source=name,
                    gpu=source["gpu"],
                    plan=label(plan),
                    half=source["half"],
                    torch=source.get("torch"),
                    transformers=source.get("transformers"),
                    ran=ran,
                    rung=rung,
                    published=published,
                    rounding=rounding_of(source),
                    **told,
                )


def installed(source: dict[str, Any]) -> str:
    """Folders of the packages that a source needs in a certain release, as ``PYTHONPATH``."""
    folders = []
    for name, version in re.findall(r"([\w-]+) (\d[\w.]*)", source.get("needs", "")):
        folder = cache.folder() / "needs" / f"{name}-{version}"
        if not folder.is_dir():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            wanted = version if version.count(".") > 1 else f"{version}.*"
            done = subprocess.run([*pip, str(folder), f"{name}=={wanted}"], check=False)
            if done.returncode:
                continue
        folders.append(str(folder))
    return os.pathsep.join((*folders, *filter(None, [os.environ.get("PYTHONPATH")])))


def spread(count: int, most: int | None) -> set[int]:
    """So many indices, evenly spread."""
    if most is None or most >= count:
        return set(range(count))
    return {(2 * index + 1) * count // (2 * most) for index in range(most)}


def answered(
    plan: Plan, source: dict[str, Any], reason: str | None
) -> tuple[Prediction | Exception, list[Prediction], Ran | None]:
    """What memcalc says of a plan, of its runs at the limits, and which releases ran."""
    if reason:
        return EstimateError(reason), [], None
    answer = predicted(plan)
    if not isinstance(answer, Prediction):
        return answer, [], None
    words = source.get("limits", {})
    runs = [f"{plan.command} {words[end]}" for end in ("least", "most") if end in words]
    ends = [predicted(replace(plan, command=command)) for command in runs]
    found = environment.find(plan.torch, plan.transformers)
    ran = Ran(torch=found.torch.release, transformers=answer.versions.get("transformers"))
    # A run that has no room at a limit says nothing.
    return answer, [one for one in ends if isinstance(one, Prediction)], ran


def predicted(plan: Plan) -> Prediction | Exception:
    """What memcalc says of a plan, or why it says nothing."""
    try:
        if not plan.command:
            return engine.predict(plan)
        found = simulate(plan)
    except MemcalcError as error:
        return error
    if found.traced is None or found.ending.code:
        return EstimateError(f"the script ended with exit code {found.ending.code}")
    return found.traced.prediction


def within(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The first answer, with a range that holds the others and theirs."""
    likely, *others = told
    if not others:
        return likely
    lows, highs = ([one.get(end, one["predicted"]) for one in told] for end in ("low", "high"))
    low, high = min(lows), max(highs)
    # What is not said has no part in a figure that is the same at both limits.
    return {**likely, "low": low, "high": high} if low < high else likely


def rounding_of(source: dict[str, Any]) -> int:
    """Bytes by which a figure may lie from what was printed of it (``digits`` behind the point)."""
    places = source.get("digits")
    return 0 if places is None else round(UNITS[source["unit"]] / 10**places / 2)


def said(answer: Prediction, rung: str, *, steps: bool = False) -> dict[str, Any]:
    """The figure of a rung, and its range where it has one.

    Args:
        answer: what memcalc says.
        rung: which figure was read.
        steps: the source set the peak back once everything was loaded and validated.
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
        later = [phase for phase in answer.phases if phase.phase not in (Phase.LOAD, Phase.EVAL)]
        highest = max(getattr(phase, rung) for phase in later)
        span = None if highest != told["predicted"] else span
        told = {"predicted": highest}
    if told["predicted"] is None:
        return {"reason": answer.unknown.get(rung, f"{rung} is not known")}
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


def summary(rows: Sequence[Judged]) -> str:
    """Median and 90th percentile of the errors, and how many ranges hold, in a line."""
    errors = sorted(abs(row.relative) for row in rows if row.relative is not None)
    inside = [row.inside for row in rows if row.inside is not None]
    if not errors:
        return "0 readings"
    most = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    middle = statistics.median(errors)
    return f"{len(errors)} | {middle:.2%} | {most:.2%} | {sum(inside)} of {len(inside)}"


def write(rows: dict[str, list[Judged]], path: pathlib.Path) -> None:
    """One reading a line, in the order of the sources' names."""
    every = [row for name in sorted(rows) for row in rows[name]]
    lines = ",\n".join(json.dumps(msgspec.to_builtins(row)) for row in every)
    path.write_text(f"[\n{lines}\n]\n")


def read(path: pathlib.Path | None) -> dict[str, list[Judged]]:
    """What was judged before, by source."""
    found: dict[str, list[Judged]] = {}
    if path is not None and path.exists():
        for row in msgspec.json.decode(path.read_bytes(), type=list[Judged]):
            found.setdefault(row.source, []).append(row)
    return found


def chosen(
    names: Sequence[str], sets: Sequence[str] = SETS
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sources that are named, or all of some sets; set by set, those of one PyTorch together."""
    found = [(path.stem, json.loads(path.read_text())) for path in sorted(PUBLISHED.glob("*.json"))]
    found.sort(key=lambda pair: (SETS.index(pair[1]["half"]), str(pair[1].get("torch"))))
    for name, source in found:
        if name in names or (not names and source["half"] in sets):
            yield name, source


def main() -> None:
    """Judge sources and say how good the estimates are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="sources; all if none is named")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--most", type=int, help="so many readings of each source")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    arguments = parser.parse_args()
    every = read(arguments.output)
    for name, source in chosen(arguments.names, arguments.sets):
        before = every.get(name, ())
        every[name] = list(judged(name, source, before, arguments.most))
        if arguments.output:
            write(every, arguments.output)
        reasons = {row.reason for row in every[name] if row.reason}
        print(f"{name} | {summary(every[name])}", *reasons, flush=True)
    for half in SETS:
        rows = [row for found in every.values() for row in found if row.half == half]
        print(f"{half} | {summary([row for row in rows if row.ran])}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
