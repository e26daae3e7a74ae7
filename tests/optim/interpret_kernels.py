"""Compares kernels with the reference over a few batches or all; run with TRITON_INTERPRET=1."""

import copy
import sys

import reference
import torch
from optim_problems import gradients
from test_optim_paths import make_batch, scalars

from memcalc.optim import launch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SETTING = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
SIZES = [[1, 300, 2048, 5000, 16], [4096]]


def compare(name, sizes, dtype, *, decoupled, maximize):
    plain = make_batch(name, sizes, dtype, 0)
    for step in range(1, 4):
        grads = [gradients((n,), dtype, seed=step, steps=1, spread=1.0)[0] for n in sizes]
        if name == "adam_8bit":
            for grad in grads:
                grad[::7] *= 1e-3
        numbers = scalars(SETTING, step=step, maximize=maximize, decoupled=decoupled)
        plain = plain | {"grads": grads}
        fast = copy.deepcopy(plain)  # each step starts from equal states
        getattr(reference, name)(**plain, s=numbers)
        getattr(launch, name)(**fast, s=numbers)
        check(name, plain, fast)


def check(name, plain, fast):
    # Sums equal to float32 rounding seldom round to different 16-bit neighbors.
    assert (torch.cat(plain["params"]) != torch.cat(fast["params"])).double().mean() < (
        0.01 if plain["params"][0].dtype != torch.float32 else 1.0
    )
    fractions = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
    for one, other in zip(plain["params"], fast["params"], strict=True):
        torch.testing.assert_close(other, one, rtol=fractions[one.dtype], atol=1e-7)
    if name == "adam_8bit":
        for column in ("absmax1", "absmax2"):
            for one, other in zip(plain[column], fast[column], strict=True):
                torch.testing.assert_close(other, one, rtol=1e-6, atol=0)
        for column in ("state1", "state2"):
            one, other = torch.cat(plain[column]), torch.cat(fast[column])
            # Moments equal to float32 rounding may fall on two sides of a boundary.
            assert (one.int() - other.int()).abs().max() <= 1
            assert (one != other).sum() <= 1 + len(one) // 1000
    elif name == "adam_32bit":
        for column in ("state1", "state2"):
            for one, other in zip(plain[column], fast[column], strict=True):
                torch.testing.assert_close(
                    other, one, rtol=1e-6, atol=1e-6 * one.abs().max().item()
                )
    else:
        for column in ("exp_avg", "exp_avg_sq"):
            one, other = torch.cat(plain[column]), torch.cat(fast[column])
            # With the same random bits all but those next to a rounding boundary are equal.
            assert (one != other).sum() <= 1 + len(one) // 50, column
        # The shift holds what is left of sums that differ in float32's last place.
        whole = [
            torch.cat(b["params"]).double() + torch.cat(b["shift"]).double() for b in (plain, fast)
        ]
        torch.testing.assert_close(whole[1], whole[0], rtol=2**-15, atol=1e-7)
        assert (torch.cat(plain["shift"]) != torch.cat(fast["shift"])).double().mean() < 0.1


def main(cases, *kernels):
    few = cases == "few"
    for name in kernels:
        count = 0
        for sizes in [[1, 300, 2048, 16]] if few else SIZES:
            for dtype in [torch.bfloat16] if name == "adamw_bf16" else DTYPES[: 1 if few else None]:
                for decoupled in (True,) if few or name == "adamw_bf16" else (True, False):
                    compare(name, sizes, dtype, decoupled=decoupled, maximize=not decoupled)
                    count += 1
        print("compared", name, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
