"""Recorded runs over quantised bases against their estimates, loading and preparing included."""

import json

import pytest

from tests.evidence.test_standin import STANDIN, accuracy

RECORDINGS = sorted(STANDIN.glob("quant-*.json"))
ALLOCATED, RESERVED = 0.005, 0.03
EQUAL = 0.8


def _plans():
    return [run["plan"] for path in RECORDINGS for run in json.loads(path.read_text())["runs"]]


def test_a_run_is_equal_in_every_phase_on_every_rung():
    # Double quantisation; all others at night.
    (row,) = accuracy["compare"](RECORDINGS[-1], first=1, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_run_is_within_its_bound_and_most_are_equal(path):
    rows = accuracy["compare"](path)
    for row in rows:
        name = accuracy["label"](row.plan)
        assert abs(row.off["allocated"]) <= ALLOCATED, name
        assert abs(row.off["reserved"]) <= RESERVED, name
    equal = [row for row in rows if row.exact["allocated"]]
    assert len(equal) >= EQUAL * len(rows)


def test_recordings_of_quantised_bases_cover_what_they_claim():
    plans = _plans()
    assert len(plans) >= 30
    assert {plan["quant"] for plan in plans} == {"nf4", "nf4-dq", "fp4", "int8"}
    assert len({plan["model"] for plan in plans}) >= 10
    assert {"paged_adamw_8bit", "adamw_8bit", "adamw"} <= {plan["optim"] for plan in plans}
    assert {"plain", "accelerate", "trainer"} == {plan["loop"] for plan in plans}
    assert {plan["devices"] for plan in plans} >= {1, 2, 4, 8}
    assert {plan["parallel"] for plan in plans} == {None, "fsdp2", "hsdp=2x2"}
    for setting in ("checkpointing", "kbit_prepare"):
        assert {plan[setting] for plan in plans} == {True, False}, setting
