"""Where a GPU is named, every answer says whether it fits, or why nobody knows."""

import pytest
from msgspec.structs import replace

from memcalc import estimate
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.estimate import Tracer, answers
from memcalc.records.prediction import FitVerdict, Prediction
from memcalc.report.blocks import terminal
from memcalc.report.predictions import blocks


def shown(*predictions):
    return terminal(blocks(predictions), width=120)


def analytic(**settings):
    return estimate(method="analytic", **settings)


def test_closed_forms_say_that_a_model_larger_than_the_gpu_does_not_fit():
    answer = analytic(model="meta-llama/Llama-3.1-8B", gpu="t4")
    assert answer.fit.verdict is FitVerdict.DOES_NOT_FIT
    assert "does not fit on T4: needs" in shown(answer)


def test_closed_forms_say_why_they_cannot_say_more():
    answer = analytic(model="gpt2", gpu="t4")
    assert answer.fit is None
    assert "unknown whether it fits t4: the analytic method" in shown(answer)


def test_several_optimizers_side_by_side_have_a_column_of_verdicts():
    plans = [make({"model": "gpt2", "optim": optim, "gpu": "t4"}) for optim in ("sgd", "adamw")]
    table = shown(*answers(plans, method="analytic"))
    assert table.splitlines()[2].endswith("on t4")
    assert all(line.endswith("n/a") for line in table.splitlines()[3:5])


def test_a_gpu_for_a_run_on_the_cpu_is_refused():
    with pytest.raises(UsageError, match="leave out gpu t4, or target cpu"):
        analytic(model="gpt2", gpu="t4", target="cpu")


def test_a_run_on_the_cpu_is_not_said_to_have_the_kernels_of_a_gpu():
    from memcalc.estimation.question import asked

    assert not any("A100" in note for note in asked(make({"model": "gpt2", "target": "cpu"})).notes)


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_an_optimizer_for_bf16_alone_says_which_option_is_missing(precision):
    plans = [
        make({"model": "gpt2", "optim": optim, "precision": precision})
        for optim in ("adamw", "memcalc.adamw_bf16")
    ]
    first, second = answers(plans, method="analytic")
    assert first.components
    assert str(second).endswith("add --precision bf16, or name another optimizer.")


def test_settings_of_the_allocator_that_do_not_exist_fail_their_plan_alone():
    plan = make({"model": "distilbert-base-cased", "batch": 1, "seq": 8})
    with Tracer() as tracer:
        tracer.trace(plan)
        wrong = replace(plan, alloc_conf="garbage_collection_threshold:7")
        first, second = tracer.answers([wrong, plan])
    assert "between 0 and 1" in str(first)
    assert isinstance(second, Prediction)
