"""Which attention kernel runs, against what PyTorch's own code chose for five cards.

Asked by benchmarks/older_choices.py, over the stand-in driver.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from memcalc.estimation.question import asked
from memcalc.kernels.attention.call import AttentionCall, Backend
from memcalc.kernels.attention.choice import choose
from memcalc.script.simulate import plan_of

ROOT = Path(__file__).parents[2]
CHOSEN = json.loads((ROOT / "evidence/standin/attention-choices.json").read_text())
BACKENDS = Backend.MATH, Backend.FLASH, Backend.EFFICIENT, Backend.CUDNN


def grid():
    spec = importlib.util.spec_from_file_location("grid", ROOT / "benchmarks/older_choices.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("release", "gpu"), [(release, gpu) for release, gpus in CHOSEN.items() for gpu in gpus]
)
def test_what_a_release_chose_is_chosen(release, gpu):
    asks, version = grid(), release.rpartition(".")[0]
    target = asked(plan_of(["python", "train.py"], gpu=gpu, torch=version)).target
    other = {}
    for case, digit in zip(asks.cases(), CHOSEN[release][gpu], strict=True):
        dtype, width, (rows, columns), mask, dropout, causal, grad = case
        call = AttentionCall(
            batch=asks.BATCH,
            heads=asks.HEADS,
            kv_heads=asks.HEADS,
            q_len=rows,
            k_len=columns,
            head_dim=width,
            value_dim=width,
            dtype=dtype,
            mask=mask is not None,
            dropout=dropout,
            causal=causal,
            needs_grad=grad,
        )
        if (found := choose(call, target)) is not BACKENDS[int(digit)]:
            other[case] = found
    assert not other
