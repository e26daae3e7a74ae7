"""Write docs/accuracy.md from what was judged.

python benchmarks/accuracy.py -o evidence/accuracy.json FILE...
python benchmarks/judge_published.py -o evidence/judged.json
python scripts/make_accuracy.py
"""

import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
RUNGS = ("requested", "allocated", "reserved")
MIB = 1 << 20
SETS = ("tune", "report", "held out", "blind", "blind 2", "blind 3", "blind 4", "blind 5")
"""Of published readings."""
_KINDS = {
    "parallel-": "several GPUs",
    "quant-": "quantised models",
    "prequantised-": "checkpoints in few bits",
    "liger-": "Liger's kernels",
    "flash-": "flash-attn",
    "decode-": "decoding",
    "scripts-": "whole scripts",
}
"""Recordings, by how their files begin; those of benchmarks/accuracy.py are listed."""


def table(head: str, rows: list[tuple[str, ...]]) -> str:
    """A table; figures stand on the right, but for the first column."""
    names = [name.strip() for name in head.split("|")]
    lines = ["---", *["---:" if name.startswith("=") else "---" for name in names[1:]]]
    titles = " | ".join(name.removeprefix("=") for name in names)
    body = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"| {titles} |\n|{'|'.join(lines)}|\n{body}"


def percentile(errors: list[float], share: float) -> float:
    """Of sorted errors the one that this share does not exceed."""
    return errors[min(len(errors) - 1, int(share * len(errors)))]


def relative(row: dict) -> float | None:
    """Said less published, of the published."""
    if row["predicted"] is None:
        return None
    return (row["predicted"] - row["published"]) / row["published"]


def inside(row: dict) -> bool | None:
    """The range that is said holds the reading; ``None``: one figure is said."""
    if row["low"] is None or row["low"] == row["high"]:
        return None
    rounding = row.get("rounding", 0)
    return row["low"] - rounding <= row["published"] <= row["high"] + rounding


def held(rows: list[dict]) -> str:
    """Share of the readings that lie in their range, in words."""
    ranges = [inside(row) for row in rows if inside(row) is not None]
    return f"{sum(ranges)} of {len(ranges)}" if ranges else "-"


def numbers(rows: list[dict]) -> tuple[str, ...]:
    """How many, median, 90th percentile and worst error, share inside."""
    errors = sorted(abs(e) for e in map(relative, rows) if e is not None)
    if not errors:
        return ("0", "-", "-", "-", "-")
    middle, most = statistics.median(errors), percentile(errors, 0.9)
    return (str(len(errors)), f"{middle:.2%}", f"{most:.2%}", f"{errors[-1]:.1%}", held(rows))


def published(rows: list[dict], sources: dict[str, dict]) -> str:
    """The part on readings of real cards."""
    cards = {row["gpu"] for row in rows}
    halves = [
        (f"{name}, {rung.replace('_', ' ')}", *numbers(found))
        for name in SETS
        for rung in ("allocated", "reserved", "process_used", "allocated_and_outside")
        if (found := [row for row in rows if row["half"] == name and row["rung"] == rung])
    ]
    halves = [
        *((name, *numbers([r for r in rows if r["half"] == name])) for name in SETS),
        *halves,
    ]
    names = sorted(sources, key=lambda name: -worst([r for r in rows if r["source"] == name]))
    each = [
        (
            f"[{name}]({sources[name]['source']})"
            if sources[name]["source"].startswith("http")
            else name,
            sources[name]["card"],
            sources[name]["half"],
            *numbers([row for row in rows if row["source"] == name]),
            sources[name].get("cause", ""),
        )
        for name in names
    ]
    ordered = sorted(rows, key=lambda row: -abs(relative(row) or 0))
    every = [
        (
            row["source"],
            row["gpu"],
            row["plan"],
            row["rung"].replace("_", " "),
            f"{row['published'] / MIB:,.0f}",
            f"{row['predicted'] / MIB:,.0f}" if row["predicted"] is not None else "-",
            f"{relative(row):+.2%}" if row["predicted"] is not None else row["reason"],
            {None: "-", True: "inside", False: "outside"}[inside(row)],
        )
        for row in ordered
    ]
    columns = "=readings | =median error | =90 % within | =worst | =range holds"
    return "\n".join(
        [
            "## Readings of real cards that others published\n",
            f"{len(rows)} readings on {len(cards)} kinds of card, each with its source in "
            "`evidence/published`, judged by\n`benchmarks/judge_published.py`. Sources were split "
            "into two halves: one that may be looked at while\nmemcalc is improved (tune), one "
            "that is only reported. A third set was written down with\nits plans before any of it "
            "was estimated, and judged once (held out). Eleven things were learnt from misses of\n"
            "the latter two, so that they are no blind trial of these any more: "
            "a cache of tuples is held twice (Llama-2-13b\nin transformers 4.32), "
            "a range has to allow for the code of another release, by a width that is the tune "
            "half's,\n"
            "YOLO's search for a batch size is run as its code of that time ran it,\n"
            "peft's comparison reads other texts before it trains,\n"
            "BERT-large of 2022 is judged with a softmax that keeps its input, as PyTorch's did "
            "before 1.11,\nLiger's distillation loss is that of its readings' own commit, "
            "santacoder runs the code of its own release and LitGPT's tables its own package,\n"
            "an older PyTorch may lay blocks without gaps (as the tune half shows too), and before "
            "2.2 its attention and\nits optimizers' steps took otherwise (recorded since with "
            "those releases' own CUDA builds),\n"
            "and in what blocks the memory lay that YOLO's search found held is not known, nor "
            "more of it than its figures\nwere rounded to; later epochs were seen of two "
            "notebooks of ultralytics that are only reported.\n"
            "Later sources, of software of 2024 to 2026, were written down before they were "
            "judged, their set drawn\nby the SHA-256 of their name (an even first digit: tune); "
            "what was mended after that, each says.\n"
            "A set was written down with its plans before any of it was estimated, and judged "
            "once (blind);\nno figure here holds any of it before that. So was another, of other "
            "sources, after what that one taught\n(blind 2), sought for readings of which a "
            "range is said; a third, of\nother sources and authors again (blind 3); "
            "a fourth (blind 4), likewise; and a fifth\n(blind 5), of scripts that are published "
            "whole.\n"
            "The PyTorch is that of the reading, of its days where a source does not say,\n"
            "and 2.0 for older ones; before 2.8 workspaces of "
            "convolutions are\nknown within limits only. transformers is the "
            "version of the reading: its own code where that\nran, else today's with what that "
            "release did otherwise (`--transformers`).\n",
            _limits(sources),
            table(f"set | {columns}", halves),
            _evened(rows),
            "By source, the largest error first:\n",
            table(f"source | card | set | {columns} | likely cause of misses", each),
            "Every reading, the largest error first, in MiB:\n",
            table("source | card | plan | read | =published | =said | =error | range", every),
        ]
    )


def _limits(sources: dict[str, dict]) -> str:
    """What sources leave open, and which: there a range is of runs at both limits."""
    found: dict[str, list[str]] = {}
    for name, source in sources.items():
        if "limits" in source:
            found.setdefault(source["limits"]["of"], []).append(name)
    said = [f"{of} ({', '.join(names)})" for of, names in found.items()]
    return (
        "Where a source leaves open what its run depends on, the range is that of three runs: as "
        "is likely,\nand at both limits of what it leaves open, each with its workspaces in "
        f"limits. So it is with {'; '.join(said)}.\n"
    )


def _evened(rows: list[dict]) -> str:
    """What a set says where each source counts once, for some have many readings."""
    said = []
    for name in SETS:
        errors: dict[str, list[float]] = {}
        for row in rows:
            if row["half"] == name and (error := relative(row)) is not None:
                errors.setdefault(row["source"], []).append(abs(error))
        if errors:
            middle = statistics.median(map(statistics.median, errors.values()))
            most = max(errors.values(), key=len)
            of = f"{len(errors)} sources, the largest with {len(most)} readings"
            said.append(f"{name}, {middle:.2%} ({of})")
    return f"The median of the sources' medians: {'; '.join(said)}.\n"


def worst(rows: list[dict]) -> float:
    """The largest error."""
    return max((abs(e) for e in map(relative, rows) if e is not None), default=0.0)


def recorded(results: dict[str, list[dict]]) -> str:
    """The part on recordings over the stand-in driver."""
    every = [row for rows in results.values() for row in rows]
    lines = []
    for rung in RUNGS:
        errors = [abs(row["off"][rung]) for row in every]
        exact = sum(row["exact"][rung] for row in every)
        lines.append(
            (
                rung,
                f"{statistics.median(errors):.3%}",
                f"{max(errors):.3%}",
                f"{exact} of {len(every)}",
            )
        )
    left = [
        kind
        for start, kind in _KINDS.items()
        if not any(name.startswith(start) for name in results)
    ]
    parts = [
        "## Recordings of PyTorch's own code\n",
        "Made by `benchmarks/accuracy.py` from the recordings in `evidence/standin`: PyTorch's own "
        "CUDA code\n(allocator, autograd, kernel choice, scratch requests) over a driver that does "
        "nothing. It judges\nrequested, allocated and reserved memory; cuDNN is off, but in "
        "recordings named so, where the real\nlibrary plans for a device it is told of. It cannot "
        "judge the CUDA context or what nvidia-smi\nshows. Recordings that are not listed "
        f"({', '.join(left)}) are held\nby `tests/evidence` and "
        "`tests/script`.\n",
        table("rung | =median error | =worst error | =every phase equal", lines),
    ]
    for name, rows in results.items():
        ordered = sorted(rows, key=lambda row: -max(abs(row["off"][rung]) for rung in RUNGS))
        parts.append(f"### {name}\n")
        body = [(row["run"], *(words(row, rung) for rung in RUNGS)) for row in ordered]
        parts.append(table("run | =requested | =allocated | =reserved", body))
    return "\n".join(parts)


def words(row: dict, rung: str) -> str:
    """The error of the peak; ``equal`` where every phase is."""
    return "equal" if row["exact"][rung] else f"{row['off'][rung]:+.3%}"


def page() -> str:
    """The page docs/accuracy.md."""
    folder = ROOT / "evidence"
    rows = json.loads((folder / "judged.json").read_text())
    judged = {row["source"] for row in rows}
    sources = {
        path.stem: json.loads(path.read_text())
        for path in sorted((folder / "published").glob("*.json"))
        if path.stem in judged
    }
    parts = [
        "# Accuracy\n\nMade by `scripts/make_accuracy.py`. **No run on a real GPU was recorded by "
        "memcalc itself yet**: what is\nsaid of real cards rests on readings that others "
        "published.\n",
        published(rows, sources),
        recorded(json.loads((folder / "accuracy.json").read_text())),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else "docs/accuracy.md is not what was judged")
    PAGE.write_text(page())
