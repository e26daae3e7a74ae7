"""Recorded single ranks of the Trainer and of accelerate over several GPUs, against estimates."""

import pytest

import memcalc
from memcalc.errors import UsageError
from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from tests.evidence.judged import STANDIN, all_of, runs, sample

(RECORDING,) = STANDIN.glob("ranks-of-loops-*.json")
PLANS = [decode(Plan, run["plan"]) for run in runs(RECORDING)]
FIRST = next(i for i, p in enumerate(PLANS) if (p.loop, p.parallel) == ("trainer", "fsdp2"))


def test_a_rank_is_met_as_accelerate_wraps_it(forked):
    sample(forked, RECORDING, [FIRST])


@pytest.mark.nightly
def test_all_ranks_are_equal_in_every_phase_as_accelerate_wraps_them():
    all_of(RECORDING)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loop": "trainer", "parallel": "zero1"}, "works with ddp, deepspeed_zero1, fsdp1"),
        ({"loop": "accelerate", "parallel": "tp=2"}, "works with ddp, deepspeed_zero1, fsdp1"),
        ({"loop": "accelerate", "parallel": "fsdp1", "parallel_args": {
            "sharding_strategy": "HYBRID_SHARD", "device_mesh": "1x2"}}, "in the plain loop"),
        ({"loop": "trainer", "parallel": "fsdp1", "parallel_args": {
            "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 5_000_000}}, "Tied weights"),
        ({"loop": "trainer", "eval": 2}, "--eval works in the plain loop"),
        ({"resume": True, "parallel": "fsdp2"}, "--resume works in the plain loop with ddp"),
        ({"loop": "trainer", "parallel": "fsdp2", "parallel_args": {"param_dtype": "bfloat16"}},
         "param_dtype from its mixed precision"),
        ({"loop": "trainer", "parallel_args": {"gradient_as_bucket_view": True}}, "leave it out"),
    ],
)  # fmt: skip
def test_what_a_loop_is_not_answered_with_is_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        memcalc.estimate("gpt2", devices=2, **settings)
