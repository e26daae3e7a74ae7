"""Ranks of kinds that no other recording holds, recorded before their estimates were looked at."""

import json

import pytest

import memcalc
from memcalc.errors import UsageError
from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from memcalc.workload import layouts
from tests.evidence.test_parallel import met
from tests.evidence.test_standin import STANDIN, accuracy

(RECORDING,) = STANDIN.glob("unseen-ranks-torch*.json")
(MORE,) = STANDIN.glob("unseen-ranks-more-*.json")
(THIRD,) = STANDIN.glob("unseen-ranks-third-*.json")
(FOURTH,) = STANDIN.glob("unseen-ranks-fourth-*.json")
(FIFTH,) = STANDIN.glob("unseen-ranks-fifth-*.json")


def plans_of(recording):
    return [decode(Plan, run["plan"]) for run in json.loads(recording.read_text())["runs"]]


PLANS = plans_of(RECORDING)
IN_SHARDS = next(i for i, p in enumerate(PLANS) if p.optim == "adamw_8bit")


@pytest.mark.nightly
def test_states_in_8_bit_are_sharded_as_their_optimizer_is():
    (row,) = accuracy["compare"](RECORDING, first=IN_SHARDS, every=1 << 20)
    assert PLANS[IN_SHARDS].parallel == "zero1"
    assert all(row.exact.values()), row.off


@pytest.mark.nightly
def test_all_of_them_are_met_within_the_bounds_that_are_promised():
    rows = accuracy["compare"](RECORDING)
    met(rows)
    assert all(row.exact["requested"] for row in rows)


ENGINE = ("deepspeed_zero1", "zero2", "zero3")


@pytest.mark.nightly
@pytest.mark.pinned
def test_gradients_that_are_exchanged_each_time_stay_in_shards():
    plans = plans_of(FOURTH)
    index = next(i for i, p in enumerate(plans) if p.parallel == "fsdp2")
    assert plans[index].parallel_args == (("no_sync", False),)
    (row,) = accuracy["compare"](FOURTH, first=index, every=1 << 20)
    assert all(row.exact.values()), row.off


@pytest.mark.nightly
@pytest.mark.parametrize("recording", [MORE, THIRD, FOURTH], ids=["more", "third", "fourth"])
def test_more_of_them_are_met_within_the_bounds_that_are_promised(recording):
    rows = []
    for index, plan in enumerate(plans_of(recording)):
        if plan.parallel in ENGINE:
            pytest.importorskip("deepspeed")
        rows += accuracy["compare"](recording, first=index, every=1 << 20)
    met(rows)
    assert all(row.exact["requested"] for row in rows)


@pytest.mark.nightly
@pytest.mark.parametrize("index", range(7))
def test_what_was_drawn_at_random_is_equal_in_every_phase(index):
    plan = plans_of(FIFTH)[index]
    if plan.parallel in ENGINE:
        pytest.importorskip("deepspeed")
    (row,) = accuracy["compare"](FIFTH, first=index, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](plan), row.off)


def of_third(model, parallel, **arguments):
    """Its place among the plans that were recorded last."""
    for index, plan in enumerate(plans_of(THIRD)):
        alike = model in plan.model and plan.parallel == parallel
        if alike and arguments.items() <= dict(plan.parallel_args).items():
            return index
    raise LookupError(model)


@pytest.mark.parametrize(
    ("parallel", "arguments"),
    [
        pytest.param("fsdp2", {}, id="uneven shards"),
        pytest.param(
            *("fsdp1", {"device_mesh": "3x4"}), id="copies of shards", marks=pytest.mark.nightly
        ),
    ],
)
def test_layers_of_odd_sizes_take_the_same_in_every_phase(parallel, arguments):
    index = of_third("odd-llama", parallel, **arguments)
    (row,) = accuracy["compare"](THIRD, first=index, every=1 << 20)
    assert all(row.exact.values()), row.off


def test_more_recordings_cover_what_they_claim():
    plans = plans_of(MORE)
    assert len(plans) >= 25
    assert sum("mixtral" in plan.model or "moe" in plan.model for plan in plans) == 4
    assert any(plan.lora for plan in plans if layouts.spread(plan).layout == "tp")
    assert {"zero2", "zero3"} <= {plan.parallel for plan in plans if plan.optim == "adamw_8bit"}
    named = {value for plan in plans for name, value in plan.parallel_args if "wrap" in name}
    assert {"SIZE_BASED_WRAP", "NO_WRAP"} <= named


def test_recordings_cover_what_they_claim():
    worlds = {layouts.spread(plan).world for plan in PLANS}
    assert {3, 5, 15, 16} <= worlds
    assert len({plan.model for plan in PLANS}) >= 9
    assert {"ddp", "zero1", "fsdp1", "fsdp2", "hsdp", "tp"} == {
        layouts.spread(plan).layout for plan in PLANS
    }
    evaluated = {layouts.spread(plan).layout for plan in PLANS if plan.eval}
    assert {"ddp", "zero1", "fsdp1", "fsdp2", "hsdp", "tp"} == evaluated
    assert any(plan.resume for plan in PLANS)


@pytest.mark.parametrize(
    ("optim", "parallel", "words"),
    [
        ("adamw_8bit", "fsdp2", "its kernels take no DTensors"),
        ("lion_32bit", "hsdp=2x1", "its kernels take no DTensors"),
        ("galore_adamw", "fsdp2", "how fsdp2 divides its state is not known"),
    ],
)
def test_an_optimizer_whose_code_is_not_run_is_refused_where_it_gets_no_plain_tensors(
    optim, parallel, words
):
    with pytest.raises(UsageError, match=words):
        memcalc.estimate("gpt2", devices=2, parallel=parallel, optim=optim)
