"""Readings that others published: each with its source, each a plan, and the page made of them."""

import json
import re
import runpy

import pytest

from memcalc.catalog import gpus
from memcalc.catalog.plan import disagreement
from tests.conftest import ROOT

SOURCES = sorted((ROOT / "evidence" / "published").glob("*.json"))
NEEDED = {"source", "card", "gpu", "half", "read", "unit", "sure", "plan", "columns", "rows"}


@pytest.fixture(scope="module")
def judge():
    return runpy.run_path(str(ROOT / "benchmarks" / "judge_published.py"))


def test_every_reading_says_where_it_is_from_and_is_a_plan(judge):
    for path in SOURCES:
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


def test_limits_say_what_they_are_of_and_name_words_of_the_script():
    for path in SOURCES:
        source = json.loads(path.read_text())
        if "limits" in source:
            # An end that is not named is what is likely.
            ends = set(source["limits"]) - {"of"}
            assert ends
            assert ends <= {"least", "most"}
            assert source["limits"]["of"]
            script = ROOT / "evidence" / "programs" / source["runs"]
            for end in ends:
                assert re.search(rf'["`]{re.escape(source["limits"][end])}["`]', script.read_text())


def test_sources_are_chosen_by_name_or_by_set(judge, tmp_path, monkeypatch):
    for name, half in (("one", "tune"), ("two", "blind 2")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"half": half}))
    monkeypatch.setitem(judge["chosen"].__globals__, "PUBLISHED", tmp_path)

    def names(*named, **more):
        return [name for name, _ in judge["chosen"](named, **more)]

    assert names() == ["one", "two"]
    assert names(sets=["tune"]) == ["one"]
    assert names("two", sets=["tune"]) == ["two"]


@pytest.mark.parametrize(
    ("said", "runs", "refusal"),
    [("2.5.1", "2.5", None), ("2.1.0", "2.1", "refused"), (None, "2.2", None)],
)
def test_a_reading_runs_under_its_own_release_or_is_refused(judge, said, runs, refusal):
    source = {"gpu": "T4", "torch": said, "unit": "B", "plan": {}, "columns": ["allocated"]}
    (plan, read), *_ = judge["rows_of"]({**source, "rows": [[5]]})
    assert plan.torch == runs
    assert read == {"allocated": 5}
    assert (judge["refused"](source) or "").startswith(refusal or "")
    assert (judge["refused"](source) is None) == (refusal is None)


def test_readings_that_are_not_judged_now_keep_their_rows(judge):
    source = {"gpu": "T4", "torch": "2.1", "half": "tune", "unit": "B", "plan": {}}
    source |= {"columns": ["batch", "allocated", "reserved"], "rows": [[1, 5, 6], [2, 7, 8]]}
    first = list(judge["judged"]("s", source, []))
    assert [row.published for row in first] == [5, 6, 7, 8]
    assert all(row.reason.startswith("refused") for row in first)
    judge["judged"].__globals__["refused"], kept = (lambda source: None), judge["refused"]
    try:
        assert list(judge["judged"]("s", source, first, most=0)) == first
    finally:
        judge["judged"].__globals__["refused"] = kept


def test_there_are_many_readings_of_many_kinds_of_card():
    found = [json.loads(path.read_text()) for path in SOURCES]
    assert sum(len(source["rows"]) for source in found) >= 150
    assert len({source["gpu"] for source in found}) >= 10


def test_every_source_has_rows_and_the_page_shows_what_was_found():
    judged = json.loads((ROOT / "evidence" / "judged.json").read_text())
    halves = {path.stem: json.loads(path.read_text())["half"] for path in SOURCES}
    assert {row["source"] for row in judged} == set(halves)
    for row in judged:
        assert (row["predicted"] is None) == (row["reason"] is not None)
        assert row["predicted"] is not None or row["ran"] is None
    made = runpy.run_path(str(ROOT / "scripts" / "make_accuracy.py"))
    assert made["page"]() == (ROOT / "docs" / "accuracy.md").read_text()


def test_the_page_counts_what_was_judged_refused_and_left(judge):
    made = runpy.run_path(str(ROOT / "scripts" / "make_accuracy.py"))
    assert made["SETS"] == judge["SETS"]
    row = {"half": "blind", "rung": "reserved", "source": "a", "gpu": "T4", "plan": "p"}
    row |= {"published": 100, "predicted": 101, "low": 99, "high": 102, "rounding": 0}
    row |= {"ran": {"torch": "2.5.1"}, "reason": None}
    refused = {**row, "ran": None, "predicted": None, "reason": "refused: too old"}
    said = made["published"]([row, refused, {**row, "ran": None}], {"a": {"source": "a log"}})
    assert "| blind | 1 | 1.00% | 1.00% | 1.0% | 1 of 1 | 1 | 1 |" in said
