"""Readings that others published: each with its source, each a plan, and the page made of them."""

import json
import re
import runpy
from pathlib import Path

import pytest

from memcalc.catalog import gpus
from memcalc.records.disagreement import disagreement

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "evidence" / "published").glob("*.json"))
NEEDED = {"source", "card", "gpu", "half", "read", "unit", "sure", "plan", "columns", "rows"}


@pytest.fixture(scope="module")
def judge():
    return runpy.run_path(str(ROOT / "benchmarks" / "judge_published.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_reading_says_where_it_is_from_and_is_a_plan(path, judge):
    source = json.loads(path.read_text())
    assert set(source) >= NEEDED
    assert source["half"] in judge["SETS"]
    assert gpus.find(source["gpu"]).name == source["gpu"]
    rows = list(judge["rows_of"](source))
    assert len(rows) == len(source["rows"])
    for plan, read in rows:
        assert disagreement(plan) is None
        assert read
        assert all(size > 0 for size in read.values())


def test_a_range_holds_the_runs_at_both_limits_of_what_a_source_leaves_open(judge):
    likely, least, most = (
        {"predicted": 100, "low": 95, "high": 102},
        {"predicted": 90},
        {"predicted": 130, "low": 120, "high": 150},
    )
    assert judge["within"]([likely]) is likely
    found = judge["within"]([likely, least, most])
    assert found == {"predicted": 100, "low": 90, "high": 150}
    alone = {"predicted": 100}
    assert judge["within"]([alone, alone, alone]) == alone


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_limits_say_what_they_are_of_and_name_words_of_the_script(path):
    source = json.loads(path.read_text())
    if "limits" in source:
        # An end that is not named is what is likely.
        ends = set(source["limits"]) - {"of"}
        assert ends
        assert ends <= {"least", "most"}
        assert source["limits"]["of"]
        script = ROOT / "benchmarks" / "published_scripts" / source["runs"]
        for end in ends:
            assert re.search(rf'["`]{re.escape(source["limits"][end])}["`]', script.read_text())


@pytest.mark.parametrize("blind_set", ["blind", "blind 2", "blind 3", "blind 4", "blind 5"])
def test_a_blind_set_is_judged_only_where_it_is_asked_for(judge, blind_set, tmp_path, monkeypatch):
    for name, half in (("one", "tune"), ("two", blind_set)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"half": half}))
    monkeypatch.setitem(judge["chosen"].__globals__, "PUBLISHED", tmp_path)

    def names(*named, blind=False):
        return [name for name, _ in judge["chosen"](named, blind=blind)]

    assert names() == ["one"]
    assert names(blind=True) == ["one", "two"]
    assert names("two") == ["two"]


def test_there_are_many_readings_of_many_kinds_of_card():
    found = [json.loads(path.read_text()) for path in SOURCES]
    assert sum(len(source["rows"]) for source in found) >= 150
    assert len({source["gpu"] for source in found}) >= 10


def test_every_reading_was_judged_and_the_page_shows_what_was_found(judge):
    judged = json.loads((ROOT / "evidence" / "judged.json").read_text())
    halves = {path.stem: json.loads(path.read_text())["half"] for path in SOURCES}
    waiting = halves.keys() - {row["source"] for row in judged}
    sets = {halves[name] for name in waiting}
    # Those of a blind set are judged together, once, or not yet.
    assert sets <= set(judge["BLIND"])
    assert waiting == {name for name, half in halves.items() if half in sets}
    for row in judged:
        assert (row["predicted"] is None) == (row["reason"] is not None)
    made = runpy.run_path(str(ROOT / "scripts" / "make_accuracy.py"))
    assert made["page"]() == (ROOT / "docs" / "accuracy.md").read_text()


@pytest.mark.parametrize("half", ["blind", "blind 2", "blind 3", "blind 4", "blind 5"])
def test_a_blind_set_has_rows_of_its_own_once_it_is_judged(judge, half):
    made = runpy.run_path(str(ROOT / "scripts" / "make_accuracy.py"))
    assert made["SETS"] == judge["SETS"]
    row = {"half": half, "rung": "reserved", "source": "a", "gpu": "T4", "plan": "p"}
    row |= {"published": 100, "predicted": 101, "low": 99, "high": 102, "rounding": 0}
    source = {"source": "a log", "card": "T4", "half": half}
    said = made["published"]([row], {"a": source})
    for name in (half, f"{half}, reserved"):
        assert f"| {name} | 1 | 1.00% | 1.00% | 1.0% | 1 of 1 |" in said
