"""Write the readings of configs/contexts.toml into docs/memory.md; the tests check it is there."""

import pathlib
import re

from memcalc.allocator import outside
from memcalc.catalog import contexts, gpus
from memcalc.catalog.contexts import Reading
from memcalc.records.prediction import Span
from memcalc.units import MIB

PATH = pathlib.Path(__file__).parent.parent / "docs" / "memory.md"
BEGIN = "<!-- contexts: made by scripts/make_context_table.py -->"
END = "<!-- end of contexts -->"
HEAD = (
    "| GPU | multiprocessors | when | MiB | torch | CUDA | driver | source | note |\n"
    "|---|---:|---|---:|---|---|---|---|---|"
)


def text() -> str:
    readings = contexts.table()
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
        held = outside.outside(gpu)
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
    PATH.write_text(document(PATH.read_text()))
