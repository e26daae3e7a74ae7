"""What changed between two answers, by every cut that sums."""

import pytest

from memcalc.advice.explain.difference import difference
from memcalc.advice.explain.explain import chapter
from memcalc.catalog.plan import make
from memcalc.estimation.estimate import Tracer
from memcalc.report import explained
from memcalc.report.blocks import terminal


@pytest.fixture(scope="module")
def chapters(small_model, settings, traced, once):
    with once("checkpointed"), Tracer() as tracer:
        other = tracer.trace(make({"model": small_model, **settings, "checkpointing": True}))
    return chapter(traced), chapter(other)


@pytest.fixture(scope="module")
def found(chapters):
    return difference(*chapters)


def test_components_and_kinds_sum_to_the_change_of_what_tensors_ask_for(found):
    requested = next(change for change in found.rungs if change.name == "requested")
    assert sum(change.by for change in found.components) == requested.by != 0
    assert sum(change.by for change in found.kinds) == requested.by


def test_the_setting_that_changed_is_named(found):
    assert found.settings == ("checkpointing False -> True",)
    assert found.versions == ()


def test_there_and_back_is_the_same_with_the_other_sign(chapters, found):
    back = difference(*reversed(chapters))
    there = {change.name: change.by for change in found.components}
    assert {change.name: -change.by for change in back.components} == there


def test_an_answer_does_not_differ_from_itself(chapters):
    same = difference(chapters[0], chapters[0])
    assert same.same
    assert terminal(list(explained.difference_blocks(same, 5))).startswith("no figure changed")


def test_the_report_says_by_how_much_and_what_most_of_it_is(found):
    text = terminal(list(explained.difference_blocks(found, 5)), width=80)
    first = text.splitlines()[0]
    assert first.startswith("process used ")
    assert "most of it activations" in first
    assert max(map(len, text.splitlines())) <= 80
