"""Write docs/accuracy.md from what was judged.

python benchmarks/accuracy.py -o evidence/accuracy.json FILE...
python benchmarks/judge_published.py -o evidence/judged.json
python scripts/make_accuracy.py [--all | --check]
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
MISSES = 10
"""Sources whose worst readings are shown."""


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


def columns(rows: list[dict]) -> tuple[str, ...]:
    """Readings, errors and ranges of those that were judged anew, and how many there are not."""
    judged = [row for row in rows if row["ran"] and row["predicted"] is not None]
    refused = sum((row["reason"] or "").startswith("refused") for row in rows)
    return (*numbers(judged), str(refused), str(len(rows) - len(judged) - refused))


def published(rows: list[dict], sources: dict[str, dict]) -> str:
    """The part on readings of real cards."""
    cards = {row["gpu"] for row in rows}
    sets = [(name, *columns([r for r in rows if r["half"] == name])) for name in SETS]
    missed = sorted(
        (row for row in rows if row["ran"] and row["predicted"] is not None),
        key=lambda row: -abs(relative(row) or 0),
    )
    largest: dict[str, dict] = {}
    for row in missed:
        largest.setdefault(row["source"], row)
    worst = [
        (*described(row), sources[name].get("cause", "nothing yet"))
        for name, row in [*largest.items()][:MISSES]
    ]
    shown = "source | card | plan | read | =published | =said | =error"
    head = "=readings | =median error | =90 % within | =worst | =range holds | =refused"
    return "\n".join(
        [
            "## Readings of real cards that others published\n",
            f"{len(rows)} readings on {len(cards)} kinds of card, each with its source in "
            "`evidence/published`. Each is judged under\nthe PyTorch and transformers it was "
            "made with (newest patch), whose own code runs. Readings with a PyTorch\nbefore 2.2 "
            "are refused; the last column counts those that were not judged with the engine yet, "
            "or that ended\nin an error. The sets: *tune* may be looked at while memcalc is "
            "improved, *report* is only reported, *held out*\nand *blind* were written down with "
            "their plans before any of them was estimated. Misses have taught since, so\nthat no "
            "set is a blind trial of the engine.\n",
            table(f"set | {head} | =not judged", sets),
            explain_ranges(rows),
            f"The {len(worst)} sources with the largest misses, by their worst reading, in MiB:\n",
            table(f"{shown} | what its file says of misses", worst),
            "`python scripts/make_accuracy.py --all` prints every reading.\n",
        ]
    )


def explain_ranges(rows: list[dict]) -> str:
    """Say what "range holds" counts, and where ranges fail."""
    known = [r for r in rows if r["ran"] and r["predicted"] is not None and inside(r) is not None]
    by_rung: dict[str, list[dict]] = {}
    for row in known:
        by_rung.setdefault(row["rung"].replace("_", " "), []).append(row)
    counts = ", ".join(f"{rung} {held(of_it)}" for rung, of_it in sorted(by_rung.items()))
    above = sum(row["published"] > row["high"] for row in known if not inside(row))
    missed = sum(not inside(row) for row in known)
    return (
        "*Range holds* counts readings inside the range that was said, of those for which memcalc "
        f"says a range and\nnot one figure: {held(known)} ({counts}).\nA range of the process is "
        "that of the CUDA context of such a card, and a range of what is reserved that of\n"
        "workspaces which cuDNN chooses there. It has no room for other errors: of the "
        f"{missed} misses, {above} lie above their range, as libraries that a program loads beside "
        "PyTorch, older releases of CUDA and\nunknown workspaces take memory too. So the screen "
        "writes ranges outward, in tenths of a GiB or tens of MiB.\n"
    )


def described(row: dict) -> tuple[str, ...]:
    """One reading beside what was said of it."""
    error = relative(row)
    return (
        row["source"],
        row["gpu"],
        row["plan"],
        row["rung"].replace("_", " "),
        f"{row['published'] / MIB:,.0f}",
        "-" if error is None else f"{row['predicted'] / MIB:,.0f}",
        row["reason"] or "-" if error is None else f"{error:+.2%}",
    )


def everything() -> str:
    """Every reading, the largest error first."""
    rows = sorted(judgements(), key=lambda row: -abs(relative(row) or 0))
    body = [
        (
            *described(row),
            {None: "-", True: "inside", False: "outside"}[inside(row)],
            row["ran"]["torch"] if row["ran"] else "-",
        )
        for row in rows
    ]
    return table("source | card | plan | read | =published | =said | =error | range | ran", body)


def judgements() -> list[dict]:
    """What judge_published.py wrote."""
    return json.loads((ROOT / "evidence" / "judged.json").read_text())


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
    return "\n".join(
        [
            "## Recordings of PyTorch's own code\n",
            "`evidence/standin` holds the peaks of PyTorch's CUDA build over the stub driver, "
            "release by release, and\n`benchmarks/accuracy.py` compares estimates with them. They "
            "judge requested, allocated and reserved\nmemory, not the CUDA context.\n",
            table("rung | =median error | =worst error | =every phase equal", lines),
        ]
    )


def page() -> str:
    """The page docs/accuracy.md."""
    folder = ROOT / "evidence"
    sources = {
        path.stem: json.loads(path.read_text()) for path in (folder / "published").glob("*.json")
    }
    parts = [
        "# Accuracy\n\nMade by `scripts/make_accuracy.py`. **No run on a real GPU was recorded by "
        "memcalc itself yet**: what is\nsaid of real cards rests on readings that others "
        "published.\n",
        published(judgements(), sources),
        recorded(json.loads((folder / "accuracy.json").read_text())),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--all" in sys.argv:
        print(everything())
    elif "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else "docs/accuracy.md is not what was judged")
    else:
        PAGE.write_text(page())
