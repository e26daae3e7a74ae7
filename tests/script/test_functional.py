"""Training loops whose weights no module holds, and whose steps no optimizer makes."""

import pytest

from memcalc.advice.explain.peak import moments
from memcalc.records.model import Place
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
    prediction = found.traced.prediction
    assert (prediction.parameters, prediction.trainable) == (weights // 4, HELD // 4)


# No thread of autograd's may hold a step's graph while the next step runs, and no import of
# Dynamo's within a step the frames of that step until they are collected.
TREES = """
    import torch._dynamo
    from torch.func import grad_and_value
    from torch.utils._pytree import tree_map
    torch.autograd.set_multithreading_enabled(False)

    def loss(weights, rows):
        for one in weights["w"]:
            rows = torch.relu(rows @ one)
        return rows.square().mean()

    weights = {"w": [torch.randn(256, 256, device="cuda") for _ in range(4)]}
    mean, square = (tree_map(torch.zeros_like, weights) for _ in range(2))
    for step in range(6):
        rows = torch.randn(256, 256, device="cuda")
        found, value = grad_and_value(loss)(weights, rows)
        clipped = tree_map(lambda one: one.clamp(-1, 1), found)
        mean = tree_map(lambda a, b: 0.9 * a + 0.1 * b, mean, clipped)
        square = tree_map(lambda a, b: 0.9 * a + 0.1 * b * b, square, clipped)
        weights = tree_map(lambda p, a, b: p - a / (b + 1), weights, mean, square)
"""
IN_PLACE = """
    import torch

    class Adam:
        def __init__(self, weights):
            self.weights, self.mean, self.square = weights, {}, {}

        def update(self, found):
            for n, (one, gradient) in enumerate(zip(self.weights, found)):
                mean = self.mean.setdefault(n, torch.zeros_like(one))
                square = self.square.setdefault(n, torch.zeros_like(one))
                mean.lerp_(gradient, 0.1)
                square.lerp_(gradient * gradient, 0.1)
                one.data.add_(mean / (square + 1), alpha=-0.1)

    def train():
        weights = [torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(4)]
        adam = Adam(weights)
        for step in range(6):
            rows = start = torch.randn(256, 256, device="cuda")
            for one in weights:
                rows = torch.relu(rows @ one)
            adam.update(torch.autograd.grad(rows.square().mean(), weights))

    train()
"""
FLAT = """
    import torch
    weights = torch.randn(4 * 256 * 256, device="cuda", requires_grad=True)
    state = torch.zeros_like(weights), torch.zeros_like(weights)
    for step in range(6):
        rows = torch.randn(256, 256, device="cuda")
        for one in weights.view(4, 256, 256):
            rows = torch.relu(rows @ one)
        rows.square().mean().backward()
        with torch.no_grad():
            state = tuple(0.9 * one + weights.grad ** n for n, one in enumerate(state, 1))
            weights -= 0.1 * state[0] / (state[1] + 1)
            weights.grad = None
"""


@pytest.mark.parametrize("script", [TREES, IN_PLACE, FLAT], ids=["trees", "in place", "flat"])
def test_what_updates_by_hand_keep_is_state_and_the_last_update_is_a_step(run, script):
    found = run(script, steps=0)
    prediction, weights = found.traced.prediction, 4 * 4 * 256 * 256
    assert found.ending.steps == 6
    assert prediction.optimizer_state.optimizer == "updates by hand"
    assert prediction.optimizer_state.total(Place.DEVICE) == 2 * weights
    assert (prediction.parameters, prediction.trainable) == (weights // 4, weights // 4)
    backward = moments(found.traced.trace, prediction.plan)[Phase.BACKWARD].components
    assert backward[Component.WEIGHTS] == weights
    assert backward[Component.OPTIMIZER_STATE] == 2 * weights
    assert Component.HELD not in backward or backward[Component.HELD] < 1024
    races = any("torch.func transform" in one for one in prediction.assumptions)
    assert races == (script is TREES)


VIEWS = """
    import torch
    from torch.func import functional_call, grad
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        views = {name: one.detach() for name, one in model.named_parameters()}
        loss = lambda views, rows: functional_call(model, views, (rows,)).square().mean()
        found = grad(loss)(views, torch.ones(8, 256, device="cuda"))
        for name, one in model.named_parameters():
            one.grad = found[name]
        optimizer.step()
"""


def test_views_of_its_own_weights_that_a_module_is_given_are_not_counted(run):
    prediction = run(VIEWS).traced.prediction
    assert (prediction.parameters, prediction.trainable) == (HELD // 4, HELD // 4)


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
