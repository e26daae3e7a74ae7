"""Weights in bf16 under autocast, and words for halves that the Trainer does not mean."""

import pytest

import memcalc


@pytest.fixture(scope="module")
def found(small_model, once):
    def ask(precision):
        return memcalc.estimate(
            small_model, precision=precision, loop="trainer", batch=2, seq=64, gpu="4090"
        )

    with once("half weights"):
        return {name: ask(name) for name in ("bf16", "bf16+amp", "amp-bf16", "fp16")}


def test_bf16_weights_under_autocast_are_half_as_large_and_compute_in_fp32_where_autocast_does(
    found,
):
    plain, mixed, whole = (found[name].components for name in ("bf16", "bf16+amp", "amp-bf16"))
    assert mixed["weights"] == plain["weights"] == whole["weights"] // 2
    assert found["bf16+amp"].peak.requested > found["bf16"].peak.requested


def test_the_trainers_own_fp16_is_told_apart_from_weights_in_fp16(found):
    said = " ".join(found["fp16"].assumptions)
    assert "the Trainer's fp16=True is --precision amp-fp16" in said
    assert "the Trainer's" not in " ".join(found["bf16+amp"].assumptions)
