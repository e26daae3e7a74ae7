"""A small part of all recorded runs that has as many pairs of settings as so few runs can have."""

import itertools
import json
import pathlib

STANDIN = pathlib.Path(__file__).parent.parent.parent / "evidence" / "standin"
RECORDINGS = sorted(STANDIN.glob("runs-*.json"))


def settings(recording, plan):
    """What can matter together: every setting that is not its default, and the recording."""
    from memcalc.records.plan import Plan

    default = Plan(model="")
    found = {("recording", recording)}
    for name, value in plan.items():
        if name not in ("seq", "batch") and value != getattr(default, name) and value != []:
            found.add((name, str(value)))
    return found


def pairwise(count):
    """``(recording, index)`` of the runs, each adding the most pairs that those before lack."""
    runs = {
        (path, index): set(itertools.combinations(sorted(settings(path.stem, run["plan"])), 2))
        for path in RECORDINGS
        for index, run in enumerate(json.loads(path.read_text())["runs"])
    }
    chosen, seen = [], set()
    for _ in range(count):
        best = max(runs, key=lambda key: len(runs[key] - seen))
        chosen.append(best)
        seen |= runs.pop(best)
    return chosen
