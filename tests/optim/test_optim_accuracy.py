"""Parameters after many steps against Adam in float64, and the traps of bf16."""

import bitsandbytes
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_problems import (
    SETTINGS,
    adam_in_float64,
    gradients,
    start,
    train,
    unit_in_last_place,
)
from torch import nn

from memcalc.optim import Adam8bit, AdamW8bit, AdamWBF16
from memcalc.optim.rounding import high_half, low_half, random_bits, remix_, weyl_indices

STEPS = 200


def rms(difference):
    return difference.double().square().mean().sqrt().item()


@given(
    n=st.sampled_from([4096, 4097, 5000, 8192]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    setting=SETTINGS,
    seed=st.integers(0, 999),
    spread=st.sampled_from([0.0, 0.3, 1.0]),
    zeros=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=settings().max_examples // 3)
def test_adamw8bit_is_at_least_as_near_to_float64_as_bitsandbytes(
    n, dtype, setting, seed, spread, zeros
):
    grads = gradients((n,), dtype, seed=seed, steps=STEPS, spread=spread, zeros=zeros)
    value = start((n,), dtype, seed=seed)
    *_, exact = adam_in_float64(value, grads, **setting)

    ours, _ = train(AdamW8bit, value, grads, **setting)
    theirs, _ = train(bitsandbytes.optim.AdamW8bit, value, grads, **setting)

    # Where neither rounds near zero both make errors of the same size, by different chances: an
    # rms over n such errors is itself uncertain by 1 / sqrt(2 n); four times that is allowed.
    assert rms(ours - exact) <= (1 + 4 / (2 * n) ** 0.5) * rms(theirs - exact)


@pytest.mark.parametrize(("make", "decoupled"), [(AdamW8bit, True), (Adam8bit, False)])
@given(setting=SETTINGS, seed=st.integers(0, 999), shape=st.sampled_from([(1,), (3, 5), (4095,)]))
@settings(max_examples=settings().max_examples // 3)
def test_small_tensors_follow_float64_to_float32_rounding(make, decoupled, setting, seed, shape):
    grads = gradients(shape, torch.float32, seed=seed, steps=STEPS)
    value = start(shape, torch.float32, seed=seed)
    ours, _ = train(make, value, grads, **setting)
    *_, exact = adam_in_float64(value, grads, decoupled=decoupled, **setting)
    # A step rounds the parameter twice, after its decay and after its move, by 2**-24 of it at
    # most each, and the factor of the decay by 2**-25.
    rounding = 2.5 * STEPS * 2.0**-24 * max(value.abs().max(), exact.abs().max())
    assert (ours - exact).abs().max() <= 1e-4 * setting["lr"] * STEPS + rounding


@given(n=st.sampled_from([1, 100, 1000]), setting=SETTINGS, seed=st.integers(0, 999))
@settings(max_examples=settings().max_examples // 3)
def test_each_step_of_adamwbf16_lands_within_one_ulp_of_float64_from_the_same_state(
    n, setting, seed
):
    parameter = nn.Parameter(start((n,), torch.bfloat16, seed=seed))
    optimizer = AdamWBF16([parameter], **setting)
    beta1, beta2 = setting["betas"]
    for t, grad in enumerate(gradients((n,), torch.bfloat16, seed=seed, steps=STEPS), 1):
        state = optimizer.state[parameter]
        old = {k: v.double().clone() for k, v in state.items() if k != "step"}
        zero = torch.zeros(n, dtype=torch.float64)
        g = grad.double()
        m = beta1 * old.get("exp_avg", zero) + (1 - beta1) * g
        v = beta2 * old.get("exp_avg_sq", zero) + (1 - beta2) * g * g
        before = parameter.detach().double()
        whole = before + old.get("shift", zero)
        whole = whole * (1 - setting["lr"] * setting["weight_decay"])
        denominator = (v / (1 - beta2**t)).sqrt() + setting["eps"]
        whole = whole - setting["lr"] * m / (1 - beta1**t) / denominator

        parameter.grad = grad
        optimizer.step()

        # Of the larger of the two: a step through zero is computed from the larger one.
        ulp = unit_in_last_place(torch.maximum(whole.abs(), before.abs()))
        new = parameter.detach().double()
        assert ((new - whole).abs() <= ulp).all()
        # The shift makes up for most of what bf16 cut: an ulp of its own remains.
        assert ((new + state["shift"].double() - whole).abs() <= ulp / 128 + 1e-30).all()


@given(setting=SETTINGS, seed=st.integers(0, 999))
@settings(max_examples=settings().max_examples // 3)
def test_adamwbf16_follows_float64_to_a_hundredth_of_the_way_it_went(setting, seed):
    grads = gradients((1000,), torch.bfloat16, seed=seed, steps=STEPS)
    value = start((1000,), torch.bfloat16, seed=seed)
    ours, optimizer = train(AdamWBF16, value, grads, **setting)
    *_, exact = adam_in_float64(value, grads, **setting)
    (state,) = optimizer.state.values()
    whole = ours.double() + state["shift"].double()
    # Each step rounds the shift, itself of bf16's precision: a walk of that many steps, and of
    # the three hundred thousand walkers of a night the furthest goes five times its root.
    rounding = unit_in_last_place(ours) / 256
    walk = rms(rounding) * (STEPS / 12) ** 0.5
    assert rms(whole - exact) <= 0.01 * rms(exact - value.double()) + walk
    walked = 5 * STEPS**0.5 * float(rounding.max())
    assert (whole - exact).abs().max() <= 0.02 * setting["lr"] * STEPS + walked
    # The parameter alone is that, rounded to bf16.
    assert ((ours.double() - whole).abs() <= unit_in_last_place(ours)).all()


def test_updates_too_small_for_bf16_are_not_lost():
    # 1e-6 per step is 1/3900 of the distance from 1 to the next bf16 below it.
    value, grads = torch.ones(4096, dtype=torch.bfloat16), [torch.ones(4096).bfloat16()] * 1000
    setting = {"lr": 1e-6, "betas": (0.9, 0.99), "weight_decay": 0.0}
    plain, _ = train(torch.optim.AdamW, value, grads, **setting)
    ours, optimizer = train(AdamWBF16, value, grads, **setting)
    (state,) = optimizer.state.values()
    assert torch.equal(plain, value)
    assert (ours.double() + state["shift"].double()).mean().item() == pytest.approx(0.999, abs=5e-5)


def test_the_second_moment_does_not_freeze_on_the_way_up_or_down():
    up = [torch.ones(4096).bfloat16()] * 1200
    down = [torch.zeros(4096).bfloat16()] * 600
    value = torch.zeros(4096, dtype=torch.bfloat16)
    for make, follows in ((AdamWBF16, True), (torch.optim.AdamW, False)):
        parameter = nn.Parameter(value.clone())
        optimizer = make([parameter], lr=0.0, betas=(0.9, 0.999))
        means = []
        for grads in (up, down):
            for grad in grads:
                parameter.grad = grad
                optimizer.step()
            means.append(optimizer.state[parameter]["exp_avg_sq"].double().mean().item())
        limit = 1 - 0.999**1200
        assert (means[0] == pytest.approx(limit, rel=0.01)) is follows
        assert (means[1] == pytest.approx(limit * 0.999**600, rel=0.03)) is follows


def test_a_coordinate_whose_second_moment_is_tiny_beside_its_block_does_not_jump():
    # One loud coordinate sets the block's scale.  If the quiet one's second moment became 0, a
    # zero gradient would move it by lr * m / eps.
    grads = [torch.full((4096,), 1e-6) for _ in range(3)]
    for grad in grads:
        grad[0] = 1.0
    grads[2][1] = 0.0
    ours, _ = train(AdamW8bit, torch.zeros(4096), grads, lr=1e-3, weight_decay=0.0)
    assert ours[1].abs() < 3 * 1e-3


def test_random_halves_are_uniform_and_uncorrelated_across_elements_steps_and_uses():
    n = 1 << 16
    weyl, scratch = weyl_indices(n, torch.device("cpu")), torch.empty(n, dtype=torch.int32)
    draws = []
    for key in (1, 2):
        bits = random_bits(weyl, 0, key, out=torch.empty_like(weyl), scratch=scratch)
        draws += [low_half(bits, out=torch.empty_like(bits)), high_half(bits, out=scratch.clone())]
        draws += [high_half(remix_(bits, scratch), out=torch.empty_like(bits))]
    draws += [draws[0].roll(1)]
    table = torch.stack(draws).double() / 65536
    assert ((table.mean(1) - 0.5).abs() < 5 / (12 * n) ** 0.5).all()
    correlation = torch.corrcoef(table) - torch.eye(len(draws), dtype=torch.float64)
    assert (correlation.abs() < 5 / n**0.5).all()
