"""What a script draws on the host does not depend on whether its weights are filled."""

import pytest
import torch

from memcalc.script.draws import Draws
from memcalc.script.patches import Patches

_aten = torch.ops.aten


@pytest.fixture
def draws():
    patches, said = Patches(), []
    draws = Draws(said.append)
    draws.install(patches)
    yield draws
    patches.undo()
    assert not said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("numel", [3, 1003, (1 << 20) + 3, (2 << 20) + 100])
@pytest.mark.parametrize("func", [_aten.normal_.default, _aten.uniform_.default])
def test_as_many_numbers_are_drawn_as_weights_take(draws, func, numel, dtype):
    torch.manual_seed(1)
    func(torch.empty(numel, dtype=dtype))
    wanted = torch.rand(4)
    torch.manual_seed(1)
    draws.skipped(func, (torch.empty(numel, dtype=dtype),), {})
    draws.settle()
    assert torch.equal(torch.rand(4), wanted)


def test_nothing_is_drawn_before_a_new_seed(draws):
    draws.skipped(_aten.normal_.default, (torch.empty(1 << 20),), {})
    torch.manual_seed(2)
    draws.settle()
    found = torch.rand(4)
    torch.manual_seed(2)
    assert torch.equal(found, torch.rand(4))


def test_whoever_asks_for_the_state_gets_that_after_the_draws(draws):
    torch.manual_seed(3)
    torch.empty(100).normal_()
    wanted = torch.get_rng_state()
    torch.manual_seed(3)
    draws.skipped(_aten.normal_.default, (torch.empty(100),), {})
    assert torch.equal(torch.get_rng_state(), wanted)
