"""Sentences of one answer that must not contradict each other."""

import memcalc
from memcalc.report import answer
from memcalc.report.blocks import terminal


def test_state_of_adapters_is_told_by_what_trains_as_its_rule_is(small_model):
    found = memcalc.estimate(small_model, lora="r=512,target=all-linear", batch=1, seq=16)
    text = terminal(list(answer.blocks(found)), width=120)
    assert "8.00 B/param that trains (rule: 8)" in text


def test_a_large_model_in_fp32_with_adamw_is_told_on_line_2_that_few_train_so():
    whole = memcalc.estimate("qwen2.5-7b", method="analytic")
    assert "--preset full, lora or qlora" in terminal(list(answer.blocks(whole))).splitlines()[1]
    for usual in ({"precision": "bf16"}, {"optim": "sgd"}):
        found = memcalc.estimate("qwen2.5-7b", method="analytic", **usual)
        assert "--preset" not in terminal(list(answer.blocks(found))).splitlines()[1]
