"""How many GPUs a plan needs, and what each layout sends."""

import pytest

from memcalc.advice.fit.devices import _over
from memcalc.advice.fit.fit import answer
from memcalc.advice.remedies.search import candidates
from memcalc.errors import UsageError
from memcalc.estimation.estimate import Tracer
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict


@pytest.mark.nightly
def test_a_model_too_large_for_one_gpu_is_spread_over_the_fewest_that_hold_it():
    plan = Plan(model="meta-llama/Llama-3.2-1B", gpu="t4", batch=1, seq=256)
    found = answer(plan, ("devices",)).devices
    assert [row.devices for row in found][:5] == [1, 2, 2, 2, 2]
    assert found[0].fit.verdict is FitVerdict.DOES_NOT_FIT
    assert not any(row.reason for row in found)
    last = [row for row in found if row.devices == found[-1].devices]
    fitting = [row.fit.verdict is FitVerdict.FITS for row in last]
    assert fitting == sorted(fitting, reverse=True)
    assert any(fitting)
    # What fits is sorted by what it sends.
    sizes = [row.sent for row in last if row.fit.verdict is FitVerdict.FITS]
    assert sizes == sorted(sizes)
    assert all(row.messages for row in last)
    assert not any(row.fit.verdict is FitVerdict.FITS for row in found[: -len(last)])


@pytest.mark.nightly
def test_layouts_that_keep_a_model_whole_are_not_traced_where_it_alone_is_too_large():
    plan = Plan(model="Qwen/Qwen2.5-7B", gpu="t4", batch=1, seq=64, precision="bf16")
    found = answer(plan, ("devices",)).devices
    whole = [row for row in found if row.parallel in ("ddp", "zero1")]
    assert all("weights and buckets alone" in row.reason for row in whole)
    assert found[-1].devices > 2


def test_a_layout_that_is_refused_says_why_and_products_that_cannot_be_divided_are_left_out():
    plan = Plan(model="gpt2", gpu="t4", batch=64, seq=1024, optim="adam8bit")
    with Tracer(use_cache=False, workers=None) as tracer:
        rows = {row.parallel: row for row in _over(plan, 2, tracer, "too large")}
    assert rows.keys() == {"ddp", "zero1", "fsdp2"}
    assert "take no DTensors" in rows["fsdp2"].reason


def test_of_no_gpu_nothing_can_be_counted():
    plan = Plan(model="gpt2")
    with pytest.raises(UsageError, match="How many of which GPU"):
        answer(plan, ("devices",))


def test_shards_are_a_remedy_where_there_are_several_gpus():
    one = {remedy.key for remedy in candidates(Plan(model="gpt2"))}
    several = {remedy.key for remedy in candidates(Plan(model="gpt2", devices=4))}
    assert several - one == {"zero1", "fsdp2"}
