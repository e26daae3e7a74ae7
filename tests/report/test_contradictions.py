"""Sentences of one answer that must not contradict each other."""

import memcalc
from memcalc.advice.fit.records import FitAnswer, GpuFit
from memcalc.records.plan import Plan
from memcalc.report import answer, fitted
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


def test_gpus_that_fail_for_one_reason_share_a_sentence_below_the_table():
    plan = Plan(model="gpt2")
    failed = [GpuFit(name=name, capacity=1 << 33, fit=None, reason="no kernels") for name in "AB"]
    answer = FitAnswer(
        plan=plan, device=None, capacity=None, context=None, here=None, gpus=tuple(failed)
    )
    table, line = fitted.tables(answer)
    assert not table.rows
    assert line.text == "A, B: no kernels"
