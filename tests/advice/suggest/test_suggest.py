"""Ways to train that fit a GPU: every one is an estimate that anybody can ask for."""

import contextlib
import io

import pytest
import yaml

import memcalc
from memcalc.advice.suggest.snippets import PROGRAMS, snippet
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.records.prediction import FitVerdict
from memcalc.report import suggested
from memcalc.report.blocks import terminal

WIDE = {"batch": 48, "seq": 512}
"""Logits of this batch alone are more than a small card has."""


@pytest.fixture(scope="module")
def found(small_model, once):
    with once("suggested"):
        return memcalc.suggest(small_model, gpu="GTX 1650", **WIDE)


def test_what_is_suggested_fits_and_keeps_the_samples_of_a_step(found):
    assert found.fitting
    for one in found.fitting:
        plan = one.figures.plan
        assert one.figures.fit.verdict is FitVerdict.FITS
        assert plan.batch * plan.grad_accum == WIDE["batch"]


def test_the_figures_are_those_of_an_estimate_of_the_same_plan(found):
    one = found.fitting[0]
    settings = {
        name: getattr(one.figures.plan, name)
        for name in one.figures.plan.__struct_fields__
        if name not in ("model", "command")
    }
    assert memcalc.estimate(one.figures.plan.model, **settings).peak == one.figures.peak


def test_what_fits_comes_first_and_what_gives_up_least_before_it(found):
    fits = [one.figures is not None for one in found.found]
    assert fits == sorted(fits, reverse=True)
    assert [one.way.key for one in found.fitting] == [
        key
        for key in ("full", "full-8bit", "full-bf16", "lora", "qlora")
        if key in {one.way.key for one in found.fitting}
    ]


def test_a_speed_that_nobody_published_is_not_made_up(found):
    for one in found.fitting:
        assert (one.speed is None) == bool(one.no_speed)


def test_the_table_names_the_verdict_the_ways_and_the_command(found):
    text = terminal(list(suggested.blocks(found, suggested.Work())), width=80)
    assert text.startswith("✓ fits on GTX 1650")
    assert "memcalc estimate" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_a_gpu_the_question_is_refused(small_model):
    with pytest.raises(UsageError, match="Name one with --gpu"):
        memcalc.suggest(small_model, gpu=None)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_snippet_says_batch_and_accumulation_in_the_words_of_its_program(found, program):
    plan = found.fitting[0].figures.plan
    text = snippet(plan, program)
    if program == "trainer":
        names = {}
        with contextlib.redirect_stderr(io.StringIO()):
            exec(text, names)
        args = names["args"]
        assert args.per_device_train_batch_size == plan.batch
        assert args.gradient_accumulation_steps == plan.grad_accum
        return
    known = yaml.safe_load(text)
    if program == "axolotl":
        assert known["micro_batch_size"] == plan.batch
    else:
        assert known["mixed_precision"] in ("fp16", "bf16", "no")
        assert f"gradient_accumulation_steps={plan.grad_accum}" in text


@pytest.mark.parametrize(
    ("optim", "named"),
    [
        ("paged_adamw8bit", "paged_adamw_8bit"),
        ("pagedadamw8bit", "paged_adamw_8bit"),
        ("transformers.adafactor", "adafactor"),
        ("adafactor", None),
    ],
)
def test_an_optimizer_is_named_as_the_trainer_names_that_very_one(small_model, optim, named):
    text = snippet(make({"model": small_model, "optim": optim}), "trainer")
    assert (f'optim="{named}"' in text) if named else ("optim=" not in text)


@pytest.mark.nightly
def test_over_several_gpus_what_each_holds_is_divided_before_a_step_is_slowed():
    found = memcalc.suggest("gpt2-medium", gpu="4xgtx-1660", batch=1, seq=128)
    full = next(one for one in found.found if one.way.key == "full")
    assert full.figures is not None
    assert full.figures.plan.devices == 4
    assert [one.key for one in full.remedies] in (["zero1"], ["fsdp2"])
    text = terminal(list(suggested.blocks(found, suggested.Work())), width=80)
    assert text.startswith("✓ fits on 4 x GTX 1660")


@pytest.mark.nightly
def test_where_one_gpu_is_too_small_for_all_weights_several_are_tried():
    found = memcalc.suggest("gpt2-medium", gpu="gtx-1650", batch=8, seq=128)
    keys = [one.way.key for one in found.fitting]
    assert "full" not in keys
    over = next(one for one in found.fitting if one.way.key.startswith("full x"))
    plan = over.figures.plan
    assert plan.devices * plan.batch * plan.grad_accum == 8
    assert over.figures.fit.verdict is FitVerdict.FITS
