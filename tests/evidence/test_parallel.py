"""Recorded single ranks of runs over several GPUs, against runs over the stub driver.

Some of the smallest models by default, all of them at night: of the plain loop, of the Trainer and
of accelerate, and of kinds that were recorded before their estimates were looked at.
"""

import pytest
from msgspec.structs import replace

import memcalc
from memcalc.accuracy.compare import peak
from memcalc.errors import UsageError
from memcalc.estimation.estimate import answers
from memcalc.files.artifact import decode
from memcalc.files.results import load
from memcalc.records.plan import Plan
from memcalc.workload import layouts
from tests.evidence.judged import ROOT, all_of, named, runs, sample

(PLAIN,) = named("parallel-")
(LOOPS,) = named("ranks-of-loops-")
(THIRD,) = named("unseen-ranks-third-")
ALL = [PLAIN, LOOPS, *named("unseen-ranks-")]


def plans_of(recording):
    return [decode(Plan, run["plan"]) for run in runs(recording)]


def test_ranks_of_small_models_are_met_in_each_layout(forked):
    found = {}
    for index, plan in enumerate(plans_of(PLAIN)):
        if plan.model in ("distilbert-base-cased", "t5-small"):
            found.setdefault(layouts.spread(plan).layout, index)
    sample(forked, PLAIN, found.values())


def test_a_rank_is_met_as_accelerate_wraps_it(forked):
    known = [(plan.loop, plan.parallel) for plan in plans_of(LOOPS)]
    sample(forked, LOOPS, [known.index(("trainer", "fsdp2"))])


def test_layers_of_odd_sizes_are_met(forked):
    plans = plans_of(THIRD)
    odd = [i for i, p in enumerate(plans) if "odd-llama" in p.model and p.parallel == "fsdp2"]
    sample(forked, THIRD, odd[:1])


@pytest.mark.nightly
@pytest.mark.parametrize("recording", ALL)
def test_all_ranks_are_equal_in_every_phase_on_every_rung(recording):
    all_of(recording)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loop": "trainer", "parallel": "zero1"}, "works with ddp, deepspeed_zero1, fsdp1"),
        ({"loop": "accelerate", "parallel": "tp=2"}, "works with ddp, deepspeed_zero1, fsdp1"),
        ({"loop": "accelerate", "parallel": "fsdp1", "parallel_args": {
            "sharding_strategy": "HYBRID_SHARD", "device_mesh": "1x2"}}, "in the plain loop"),
        ({"loop": "trainer", "parallel": "fsdp1", "parallel_args": {
            "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 5_000_000}}, "Tied weights"),
        ({"parallel": "fsdp1", "precision": "bf16", "lora": "r=2"}, "--no-autocast-adapter-dtype"),
        ({"loop": "trainer", "eval": 2}, "--eval works in the plain loop"),
        ({"resume": True, "parallel": "fsdp2"}, "--resume works in the plain loop with ddp"),
        ({"loop": "trainer", "parallel": "fsdp2", "parallel_args": {"param_dtype": "bfloat16"}},
         "param_dtype from its mixed precision"),
        ({"loop": "trainer", "parallel_args": {"gradient_as_bucket_view": True}}, "leave it out"),
        ({"optim": "adamw_8bit", "parallel": "fsdp2"}, "its kernels take no DTensors"),
        ({"optim": "lion_32bit", "parallel": "hsdp=2x1"}, "its kernels take no DTensors"),
        ({"optim": "galore_adamw", "parallel": "fsdp2"}, "how fsdp2 divides its state is unknown"),
    ],
)  # fmt: skip
def test_what_a_loop_or_a_layout_is_not_answered_with_is_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        memcalc.estimate("gpt2", devices=2, **settings)


(RECORDING,) = (ROOT / "evidence" / "cpu").glob("ranks-*.json")
RUNS = load(RECORDING)
RANKS = [
    (f"{run.plan.model} {run.plan.parallel} rank {one.plan.rank}", one)
    for run in RUNS
    for one in run.ranks
]
WITHIN = 0.001


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "run"), RANKS)
def test_the_peak_of_a_recorded_rank_is_met(name, run):
    (answer,) = answers([replace(run.plan, torch=None)], use_cache=False)
    found = peak(answer, run.measurement, "requested")
    assert abs(found.relative) <= WITHIN, found
