"""A step of many micro-batches traced through a few is the whole step, event by event."""

import json

import pytest

from memcalc.catalog import models

SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 999}
CASES = {
    "as it is": ({}, True),
    "accelerate, autocast, clipped": (
        {"loop": "accelerate", "precision": "amp-fp16", "max_grad_norm": 1.0},
        True,
    ),
    "checkpointing and adapters": ({"checkpointing": True, "lora": "r=4"}, True),
    "outputs dropped, 8-bit states": ({"keep_outputs": False, "optim": "adamw8bit"}, True),
    "gradients kept": ({"set_to_none": False, "eval": 2}, True),
    "two GPUs": ({"devices": 2, "parallel": "ddp"}, True),
    # It holds all micro-batches of a step at once.
    "the Trainer": ({"loop": "trainer"}, False),
}


def folded_and_whole(settings):
    """Are the two traces equal, and was the first one folded?"""
    from memcalc import registry
    from memcalc.catalog.plan import make
    from memcalc.estimation.question import resolve
    from memcalc.trace import run
    from memcalc.trace.folding import accumulation
    from memcalc.trace.folding.tagged import same
    from memcalc.workload.prepare import prepare

    def traced():
        plan = make(settings)
        program = prepare(plan, registry.find(plan.optim, {}))
        return run.trace(program, resolve(plan, None)[0])

    few = traced()
    run.LEAST = 1 << 20
    whole = traced()
    equal = same(few, whole) and (few.flops, few.sent) == (whole.flops, whole.sent)
    return [equal, accumulation.SAID in few.assumptions]


@pytest.mark.parametrize(
    "name",
    [
        name if number < 2 else pytest.param(name, marks=pytest.mark.nightly)
        for number, name in enumerate(CASES)
    ],
)
def test_micro_batches_traced_through_a_few_are_all_of_them(forked, tmp_path, name):
    settings, folds = CASES[name]
    config = {**models.find("gpt2").config, **SMALL}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = {"model": str(tmp_path), "batch": 2, "seq": 16, "grad_accum": 9, **settings}
    assert forked(folded_and_whole, plan) == [True, folds]
