"""Norms of many tensors, against what PyTorch 2.13's CUDA code was seen to take."""

import torch

from memcalc.kernels.formulas.norms import FORMULAS
from memcalc.kernels.scratch import Scratch
from memcalc.kernels.target import Target
from memcalc.trace.scratch.step import READERS

TARGET = Target(capability=(9, 0), multiprocessors=132, torch=(2, 13))


def taken(*sizes):
    given = [torch.empty(size, device="meta") for size in sizes]
    call = READERS["_foreach_norm"]((given,), [torch.empty((), device="meta") for _ in given])
    return FORMULAS[call.name](TARGET, *call.args)


def test_each_tensor_without_elements_takes_a_zero_beside_its_norm():
    assert taken(100, 70_000, 3) == Scratch((24,), (~0,))
    assert taken(100, 0, 70_000, 0, 3) == Scratch((40,), (4, 4, ~2, ~1, ~0))
    assert taken(0, 0) == Scratch((), (4, 4, ~1, ~0))
