"""What a script's memory is said to be for, in whatever order it calls what it has."""

from memcalc.records.trace import Component, Phase

ORDER = """
    import torch

    class Scaled(torch.nn.Module):
        def forward(self, row):
            return row / 2

    maker, judge = (torch.nn.Linear(256, 256).cuda() for _ in range(2))
    optimizers = [torch.optim.Adam(one.parameters()) for one in (maker, judge)]
    scaled, rows = Scaled(), torch.randn(64, 256)
    for _ in range(3):
        batch = scaled(rows).cuda()
        for loss in (lambda: judge(batch).sum(), lambda: judge(maker(batch)).sum()):
            loss().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
"""
WEIGHTS = 4 * 256 * 257


def test_models_called_after_others_and_after_transforms_of_the_host_are_weights(run):
    prediction = run(ORDER, steps=0).traced.prediction
    assert prediction.components[Component.WEIGHTS] == 2 * WEIGHTS
    assert prediction.components[Component.INPUTS] == 4 * 64 * 256


def test_a_transform_of_the_host_does_not_end_loading(run):
    prediction = run(ORDER, steps=0).traced.prediction
    load = next(phase for phase in prediction.phases if phase.phase is Phase.LOAD)
    # Both models, and the first batch before it is fed.
    assert load.requested == 2 * WEIGHTS + 4 * 64 * 256
