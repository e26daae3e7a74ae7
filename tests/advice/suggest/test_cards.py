"""Which card a model needs: that one fits and the next smaller does not are both estimates."""

import pytest

import memcalc
from memcalc.advice.remedies.rows import half_precision
from memcalc.advice.suggest.gpus import PIECES, _one_of_each_size, cards
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.records.prediction import FitVerdict

WIDE = {"batch": 384, "seq": 512}
"""Logits of this batch are more than a small card has."""


@pytest.fixture(scope="module")
def found(small_model, once):
    with once("cards"):
        return cards(make({"model": small_model, **WIDE}))


@pytest.mark.nightly
def test_it_fits_the_card_that_is_named_and_none_of_a_smaller_size(found, small_model):
    one = next(each for each in found.fitting if each.way.key == "full" and not each.remedies)
    assert one.figures.fit.verdict is FitVerdict.FITS
    smallest, second = [gpu.name for gpu in _one_of_each_size(gpus.list_rental_gpus())][:2]
    assert one.figures.plan.gpu == second
    below = memcalc.estimate(small_model, gpu=smallest, precision="amp-fp16", **WIDE)
    assert below.fit.verdict is not FitVerdict.FITS


@pytest.mark.nightly
def test_a_step_keeps_its_samples_and_the_lean_form_needs_no_larger_card(found):
    sizes = {
        (one.way.key, bool(one.remedies)): gpus.find(one.figures.plan.gpu).memory
        for one in found.fitting
    }
    for one in found.fitting:
        plan = one.figures.plan
        assert plan.batch * plan.grad_accum == WIDE["batch"]
        assert plan.grad_accum == (PIECES if one.remedies else 1)
        assert sizes.get((one.way.key, True), 0) <= sizes[one.way.key, False]


@pytest.mark.nightly
def test_a_way_names_the_half_precision_that_its_card_computes_in(found):
    assert any("T4" in one.figures.plan.gpu and "fp16" in one.way.title for one in found.fitting)
    for one in found.fitting:
        assert half_precision(one.figures.plan) in one.way.title


def test_cards_are_those_that_pytorch_has_builds_for():
    every = list(_one_of_each_size(gpus.table()))
    assert all(gpu.capability >= (7, 5) for gpu in every)
    assert len({gpu.sold_as for gpu in gpus.table()}) >= len(every)
