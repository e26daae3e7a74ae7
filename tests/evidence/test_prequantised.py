"""Recorded runs over checkpoints that were quantised before, against their estimates."""

import json

import pytest

from memcalc.records.trace import Phase
from tests.evidence.test_standin import STANDIN, accuracy

IN_TURN, THREADS = (
    STANDIN / f"prequantised-{how}-torch2.13-cc90.json" for how in ("in-turn", "threads")
)


def plans(path):
    return [run["plan"] for run in json.loads(path.read_text())["runs"]]


@pytest.mark.nightly
def test_every_run_that_reads_tensor_by_tensor_is_equal():
    for row in accuracy["compare"](IN_TURN):
        assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
def test_threads_change_nothing_but_the_peak_of_loading_and_that_by_little():
    """Each weight has a tensor of up to 512 bytes that says how it was quantised, for a while."""
    recording = json.loads(THREADS.read_text())
    wanted = accuracy["plans_of"](recording)
    with accuracy["as_recorded"](recording):
        answers = list(accuracy["trace_all"](wanted))
    for run, plan, answer in zip(recording["runs"], wanted, answers, strict=True):
        found = accuracy["errors"](accuracy["steady"](run), answer)
        for (phase, rung), (predicted, recorded) in found.items():
            if phase is Phase.LOAD and rung != "reserved":
                assert abs(predicted - recorded) <= 0.001 * recorded, plan.model
            else:
                assert predicted == recorded, (plan.model, phase, rung)


def test_recordings_cover_what_they_claim():
    assert [p["model"] for p in plans(IN_TURN)] == [p["model"] for p in plans(THREADS)]
    recorded = plans(IN_TURN)
    assert len(recorded) >= 8
    assert {plan["quant"] for plan in recorded} == {"nf4", "nf4-dq", "fp4", "int8"}
    assert {plan["loop"] for plan in recorded} == {"plain", "accelerate", "trainer"}
    assert {"paged_adamw_8bit", "adamw_8bit", "adamw"} == {plan["optim"] for plan in recorded}
    assert {plan["checkpointing"] for plan in recorded} == {True, False}
