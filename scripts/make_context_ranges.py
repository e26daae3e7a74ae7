"""Write configs/context_ranges.json, and the readings behind it into docs/memory.md.

python scripts/make_context_ranges.py [evidence/FILE.json ...]

NVIDIA publishes no formula for what a process holds outside PyTorch's allocator, so each GPU has a
range out of readings (configs/contexts.toml, and those of files of ``memcalc measure``, which are
kept in configs/contexts_measured.json): those of a GPU's own kind where there are enough, else
those of all GPUs, which grow about as the number of multiprocessors does.

A few readings show less than the spread there is: the next of three lies between them every other
time, of n by (n - 1) / (n + 1). So the range reaches as far from the median of its kind as any
reading of any kind lies from that of the others of its kind. The tests check both files.
"""

import functools
import json
import pathlib
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.catalog import gpus
from memcalc.catalog.contexts import TABLE, ContextRanges
from memcalc.catalog.gpus import Gpu
from memcalc.files import artifact, results, shipped
from memcalc.files.artifact import decode
from memcalc.records.measurement import GpuReading, Measurement
from memcalc.records.prediction import Span
from memcalc.units import MIB, printed_bytes

DOCS = pathlib.Path(__file__).parent.parent / "docs" / "memory.md"
BEGIN = "<!-- contexts: made by scripts/make_context_ranges.py -->"
END = "<!-- end of contexts -->"
HEAD = (
    "| GPU | multiprocessors | when | MiB | torch | CUDA | driver | source | note |\n"
    "|---|---:|---|---:|---|---|---|---|---|"
)
MEASURED = "contexts_measured.json"


class Stage(Enum):
    """How far a process had come when it was read."""

    CONTEXT = "context"
    """Nothing but the CUDA context."""
    TENSOR = "tensor"
    """The first tensor."""
    LOADING = "loading"
    """Weights, but no kernels of a model yet."""
    INFERENCE = "inference"
    """A model loaded or running; a report that does not tell which is counted here."""
    TRAINING = "training"


ENOUGH = 3
"""Readings of a kind of GPU that show its spread; with fewer, the spread of all GPUs is taken."""
_MODEL = frozenset({Stage.LOADING, Stage.INFERENCE, Stage.TRAINING})
"""With a model there. How far it had come is often not told, and makes no difference to be seen."""
_BARE = frozenset({Stage.CONTEXT})


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one GPU: bytes outside the allocator, as far as the figures were printed."""

    gpu: str
    stage: Stage
    low: int
    high: int
    lazy: bool
    """Kernels loaded when they are first used; else all of a library's at once."""
    source: str
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    note: str = ""
    aside: str = ""
    """Why it counts for nothing; empty: it counts."""
    measured: bool = False
    """Measured by memcalc; else published."""

    @property
    def middle(self) -> int:
        """Halfway between what the printed figures leave open."""
        return (self.low + self.high) // 2


@functools.cache
def table() -> tuple[Reading, ...]:
    """All readings: published, then measured ones."""

    def reading(entry: dict[str, Any]) -> dict[str, Any]:
        low, high = outside(entry["used"], entry.get("reserved", ()))
        return {**entry, "low": low, "high": high}

    published = shipped.read(
        "contexts.toml",
        lambda data: decode(tuple[Reading, ...], list(map(reading, data["reading"]))),
    )
    if not (shipped.configs() / MEASURED).exists():
        return published
    return *published, *shipped.read(MEASURED, lambda data: decode(tuple[Reading, ...], data))


def outside(used: str, reserved: Iterable[str]) -> tuple[int, int]:
    """Least and most bytes between two printed figures, half of their last digit either way."""
    low, high = printed_bytes(used)
    for part in reserved:
        least, most = printed_bytes(part)
        low, high = low - most, high - least
    return low, high


_TOLD = frozenset({"process", "appeared"})
"""Sources that name the process; a difference of device figures may hold somebody else's."""


def readings(measurements: Iterable[Measurement], source: str) -> Iterator[Reading]:
    """The bare context and the trained process of every run that NVML named.

    Left out are runs that did not end, and those with managed memory, which NVML counts too.

    Args:
        measurements: of ``memcalc measure``.
        source: the file they are from.

    Raises:
        UsageError: a GPU is not in the catalog.
    """
    for measured in measurements:
        gpu = measured.gpu
        managed = measured.state.managed if measured.state is not None else 0
        if gpu is None or gpu.source not in _TOLD or measured.out_of_memory or managed:
            continue
        for stage, size in (
            (Stage.CONTEXT, gpu.context),
            (Stage.TRAINING, gpu.outside_allocator),
        ):
            if size is not None:
                yield _reading(measured, gpu, stage, size, source)


def _reading(
    measured: Measurement, gpu: GpuReading, stage: Stage, size: int, source: str
) -> Reading:
    return Reading(
        gpu=gpus.find(gpu.name, gpu.total).name,
        stage=stage,
        low=size,
        high=size,
        lazy=measured.settings.get("CUDA_MODULE_LOADING", "LAZY").upper() != "EAGER",
        source=source,
        torch=measured.versions.get("torch"),
        cuda=measured.versions.get("cuda"),
        driver=gpu.driver or None,
        note=f"{measured.plan.model} {measured.plan.optim} {measured.plan.precision}",
        measured=True,
    )


def measured_text(files: list[str]) -> str:
    found = []
    for name in files:
        measured = [run.measurement for run in results.load(pathlib.Path(name)) if run.measurement]
        found += readings(measured, name)
    return "[\n" + ",\n".join(json.dumps(artifact.encode(r)) for r in found) + "\n]\n"


def eager_span(gpu: Gpu) -> Span:
    """The same where all kernels are loaded at the start: ``CUDA_MODULE_LOADING=EAGER``.

    So did every PyTorch before 1.13, and every one built for CUDA before 11.7.
    """
    readings = [r for r in table() if not r.lazy and not r.aside]
    own = _of_kind(gpu, readings)
    if len(own) >= ENOUGH:
        return _own(own)
    span = _by_multiprocessors(gpu, readings, len(own))
    return replace(span, low=_own(own).low, likely=_own(own).likely) if own else span


def ranges_of(gpu: Gpu | None) -> ContextRanges:
    """Context and modules of a process on a GPU; without one, the limits over all known GPUs."""
    total, context = _span(gpu, _MODEL), _span(gpu, _BARE)
    if bare := _of_kind(gpu, comparable(_BARE)):
        # A process holds no less than its GPU's bare context, unless one was read that did.
        least = min(r.low for r in (*bare, *_of_kind(gpu, comparable(_MODEL))))
        likely = max(total.likely, least) if total.likely is not None else None
        total = replace(total, low=max(total.low, least), likely=likely)
    # A context is no larger than what the process holds with a model in it.
    low, high, likely = min(context.low, total.low), min(context.high, total.high), context.likely
    if likely is not None and total.likely is not None:
        likely = min(likely, total.likely)
    context = replace(context, low=low, likely=likely, high=high)
    likely = None
    if total.likely is not None and context.likely is not None:
        likely = total.likely - context.likely
    modules = Span(
        low=max(total.low - context.high, 0),
        likely=likely,
        high=total.high - context.low,
        source="the difference of the two",
    )
    eager = eager_span(gpu) if gpu is not None else None
    return ContextRanges(context=context, modules=modules, total=total, eager=eager)


def comparable(moments: frozenset[Stage]) -> tuple[Reading, ...]:
    """Readings at these moments that count: kernels loaded lazily, nothing set aside."""
    return tuple(r for r in table() if r.stage in moments and r.lazy and not r.aside)


def alike(gpu: Gpu, other: Gpu) -> bool:
    """The same kind of chip: what the driver sizes a context by is the same."""
    return (gpu.capability, gpu.multiprocessors) == (other.capability, other.multiprocessors)


def _of_kind(gpu: Gpu | None, readings: Sequence[Reading]) -> list[Reading]:
    return [r for r in readings if gpu is not None and alike(gpu, gpus.find(r.gpu))]


def _span(gpu: Gpu | None, moments: frozenset[Stage]) -> Span:
    readings = comparable(moments)
    if gpu is None:
        every = [_span(one, moments) for one in gpus.table()]
        source = f"any GPU, {len(readings)} readings on {_models(readings)} GPUs"
        low, high = min(span.low for span in every), max(span.high for span in every)
        return Span(low=low, likely=None, high=high, source=source)
    own = _of_kind(gpu, readings)
    measured = [r for r in own if r.measured]
    for known, others in ((measured, [r for r in readings if r.measured]), (own, readings)):
        if len(known) >= ENOUGH:
            return _next(known, others)
    return _by_multiprocessors(gpu, readings, len(own))


def _own(readings: Sequence[Reading]) -> Span:
    kind = "readings by memcalc" if all(r.measured for r in readings) else "published readings"
    return Span(
        low=min(r.low for r in readings),
        likely=int(statistics.median(r.middle for r in readings)),
        high=max(r.high for r in readings),
        source=f"{len(readings)} {kind} on {', '.join(sorted({r.gpu for r in readings}))}",
    )


def _next(own: Sequence[Reading], every: Sequence[Reading]) -> Span:
    """Where one reading more of a kind lies, by how readings of all kinds lie to one another."""
    least, most, count = _apart(every)
    span = _own(own)
    middle = statistics.median(r.middle for r in own)
    # Whole bytes, rounded outwards; a GPU's own readings always lie inside.
    return replace(
        span,
        low=min(span.low, int(middle * least)),
        high=max(span.high, -int(-middle * most // 1)),
        source=f"{span.source}, widened by {count} readings on all GPUs",
    )


def _apart(readings: Sequence[Reading]) -> tuple[float, float, int]:
    """Least and most share of a reading in the median of the others of its kind, and how many."""
    kinds: dict[tuple[tuple[int, int], int], list[Reading]] = {}
    for reading in readings:
        gpu = gpus.find(reading.gpu)
        kinds.setdefault((gpu.capability, gpu.multiprocessors), []).append(reading)
    shares = [
        (reading.low / middle, reading.high / middle)
        for kind in kinds.values()
        if len(kind) >= ENOUGH
        for number, reading in enumerate(kind)
        for middle in [statistics.median(r.middle for r in (*kind[:number], *kind[number + 1 :]))]
    ]
    return min(low for low, _ in shares), max(high for _, high in shares), len(shares)


def _by_multiprocessors(gpu: Gpu, readings: Sequence[Reading], own: int) -> Span:
    """The smallest and largest share of a multiprocessor that was read anywhere."""
    counts = [gpus.find(r.gpu).multiprocessors for r in readings]
    pairs = list(zip(readings, counts, strict=True))
    here = gpu.multiprocessors
    # A part does not shrink with the GPU: one smaller than any that was read is taken as those.
    as_large = max(here, min(counts))
    # Whole bytes, rounded outwards, so that a GPU's own readings always lie inside.
    return Span(
        low=min(r.low * here // count for r, count in pairs),
        likely=int(statistics.median(r.middle / count for r, count in pairs) * as_large),
        high=max(-(-r.high * as_large // count) for r, count in pairs),
        source=f"per multiprocessor, {len(readings)} such readings on {_models(readings)} GPUs"
        + (f", {own} of its kind" if own else ""),
    )


def _models(readings: Sequence[Reading]) -> int:
    return len({r.gpu for r in readings})


def ranges_text() -> str:
    found = {
        gpu.name if gpu is not None else "any": ranges_of(gpu) for gpu in (*gpus.table(), None)
    }
    rows = (
        f"{json.dumps(name)}: {json.dumps(artifact.encode(one))}" for name, one in found.items()
    )
    return "{\n" + ",\n".join(rows) + "\n}\n"


def text() -> str:
    readings = table()
    lazy = [r for r in readings if r.lazy and not r.aside]
    eager = [r for r in readings if not r.lazy]
    aside = [r for r in readings if r.aside]
    models = len({r.gpu for r in readings})
    return "\n\n".join(
        (
            f"{len(readings)} readings of {models} GPU models; {len(lazy)} count. What follows:",
            _spans(lazy),
            "The readings that count:",
            f"{HEAD}\n" + "\n".join(map(_row, lazy)),
            "With all kernels of a library loaded at once, as before CUDA 11.7 and PyTorch 1.13:",
            f"{HEAD}\n" + "\n".join(map(_row, eager)),
            "Set aside, because something else is in them:",
            f"{HEAD}\n" + "\n".join(map(_row, aside)),
        )
    )


def _spans(lazy: list[Reading]) -> str:
    rows = ["| GPU | bare context, MiB | with a model, MiB | by |", "|---|---:|---:|---|"]
    for gpu in (*(g for g in gpus.table() if any(r.gpu == g.name for r in lazy)), None):
        held = ranges_of(gpu)
        name = gpu.name if gpu is not None else "any"
        cells = name, _mib(held.context), _mib(held.total), held.total.source
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _mib(span: Span | Reading) -> str:
    low, high = (f"{size / MIB:.0f}" for size in (span.low, span.high))
    return low if low == high else f"{low} to {high}"


def _row(reading: Reading) -> str:
    found = re.search(r"github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)", reading.source)
    name = f"{found[1]} #{found[2]}" if found else reading.source.rpartition("/")[2]
    link = f"[{name}]({reading.source})" if reading.source.startswith("http") else name
    count = gpus.find(reading.gpu).multiprocessors
    versions = (reading.torch or "", reading.cuda or "", reading.driver or "")
    cells = (reading.gpu, str(count), reading.stage.value, _mib(reading), *versions, link)
    return f"| {' | '.join(cells)} | {reading.aside or reading.note} |"


def document(before: str) -> str:
    start, rest = before.split(BEGIN)
    return f"{start}{BEGIN}\n{text()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if sys.argv[1:]:
        (shipped.configs() / MEASURED).write_text(measured_text(sys.argv[1:]))
    (shipped.configs() / TABLE).write_text(ranges_text())
    DOCS.write_text(document(DOCS.read_text()))
