"""Training loops whose weights no module holds, and whose steps no optimizer makes."""

import pytest

from memcalc.advice.explain.peak import moments
from memcalc.records.trace import Component, Phase

SAMPLES = """
    import torch
    from torch.func import functional_call, grad, vmap
    model = torch.nn.Linear(256, 256).cuda()
    params = {name: one.detach().clone() for name, one in model.named_parameters()}

    def loss(params, row):
        return functional_call(model, params, (row,)).square().mean()

    for step in range(99):
        rows = torch.randn(8, 256, device="cuda")
        found = vmap(grad(loss), in_dims=(None, 0))(params, rows)
        params = {name: one - 0.1 * found[name].mean(0) for name, one in params.items()}
"""
PLAIN = """
    import torch
    weight = torch.randn(256, 257, device="cuda", requires_grad=True)
    for step in range(99):
        loss = (torch.ones(64, 256, device="cuda") @ weight).tanh().sum()
        found, = torch.autograd.grad(loss, weight)
        weight = (weight - 0.1 * found).detach().requires_grad_()
"""
HELD = 4 * 256 * 257


LISTED = """
    import torch
    model = torch.nn.Linear(256, 256).cuda()
    for step in range(99):
        loss = model(torch.ones(64, 256, device="cuda")).square().mean()
        kept = torch.autograd.grad(loss, model.parameters())
        with torch.no_grad():
            for one, other in zip(model.parameters(), kept):
                one -= 0.1 * other
"""


@pytest.mark.parametrize(
    ("script", "weights", "gradients"),
    [(SAMPLES, 2 * HELD, 8 * HELD), (PLAIN, HELD, HELD), (LISTED, HELD, HELD)],
)
def test_weights_that_are_replaced_by_others_are_weights_and_each_time_is_a_step(
    run, script, weights, gradients
):
    found = run(script)
    assert (found.ending.stopped, found.ending.steps) == (True, 3)
    held = found.traced.prediction.components
    backward = moments(found.traced.trace, found.traced.prediction.plan)[Phase.BACKWARD]
    assert backward.components[Component.WEIGHTS] == weights
    assert backward.components[Component.GRADIENTS] >= gradients
    assert held[Component.HELD] == 0


MOMENTUM = """
    import torch
    live, slow = (torch.nn.Linear(256, 256).cuda() for _ in range(2))
    optimizer = torch.optim.SGD(live.parameters(), 0.1)
    for step in range(3):
        with torch.no_grad():
            for one, other in zip(slow.parameters(), live.parameters()):
                one.data = one.data * 0.9 + other.data * 0.1
        live(torch.ones(4096, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_weights_that_get_other_memory_in_every_step_stay_weights(run):
    components = run(MOMENTUM, steps=0).traced.prediction.components
    assert components[Component.WEIGHTS] == 2 * HELD


SEARCHES = """
    import torch
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=6, history_size=4, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(64, 256, device="cuda")).square().mean()
        loss.backward()
        return loss

    for step in range(3):
        optimizer.step(closure)
"""


def test_lbfgs_keeps_a_whole_history_though_all_gradients_read_as_zero(run):
    prediction = run(SEARCHES, steps=0).traced.prediction
    # Old directions and steps, the last direction and the gradient before.
    kept = [one for one in prediction.optimizer_state.tensors if one.numel == 256 * 257]
    assert len(kept) == 2 * 4 + 2
    assert any("LBFGS" in one for one in prediction.assumptions)
