"""``memcalc.simulate`` and ``memcalc.estimate`` of live objects."""

import contextlib
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import memcalc
from memcalc.errors import EstimateError, UsageError
from memcalc.records.trace import Component, Phase

WEIGHTS = 4 * (64 * 32 + 32)


def cold(text):
    """Run a program of its own: whether a backward has run matters."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=False
    )


def train(steps=2):
    model = torch.nn.Linear(64, 32).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated(), torch.cuda.get_device_name()


def blocks_and_what_is_left_of_them():
    for gpu in ("t4", "h100-sxm"):
        with memcalc.simulate(gpu=gpu) as run:
            peak, called = train()
        assert peak == run.peak.allocated == run.prediction.peak.allocated, run.peak
        assert run.prediction.fit.gpu, run.prediction.fit
        assert gpu != "t4" or called == "Tesla T4"
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    assert "MEMCALC_SIMULATED" not in os.environ
    model = torch.nn.Linear(4, 4)
    model(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad.sum() == 32
    with memcalc.simulate(steps=2) as run:
        train(steps=50)
    assert run.prediction.optimizer_state.optimizer == "Adam"
    with contextlib.suppress(KeyError), memcalc.simulate(gpu="h100-sxm") as run:
        train()
        raise KeyError
    assert run.peak.allocated == peak


def test_a_block_runs_on_a_gpu_that_is_gone_afterwards(forked):
    forked(blocks_and_what_is_left_of_them)


@pytest.mark.nightly
def test_a_block_entered_after_a_backward_has_its_gpu_served():
    done = cold(
        """
        import torch, memcalc
        torch.ones((), requires_grad=True).backward()
        with memcalc.simulate() as run:
            torch.ones(100, device="cuda", requires_grad=True).sum().backward()
        assert run.peak.requested == 2 * 400 + 2 * 4, run.peak
        try:
            memcalc.estimate(torch.nn.Linear(4, 4), loss=torch.sum, inputs=torch.ones(2, 4))
        except memcalc.errors.EstimateError as error:
            assert "in a process of its own" in str(error), error
        else:
            raise AssertionError
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_module_that_is_asked_about_stays_as_it_is():
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    before = [p.detach().clone() for p in model.parameters()]
    found = memcalc.estimate(
        model,
        optimizer=optimizer,
        loss=torch.nn.functional.mse_loss,
        inputs=torch.randn(8, 64),
        targets=torch.randn(8, 32),
        gpu="t4",
    )
    assert found.components[Component.WEIGHTS] == WEIGHTS
    assert found.components[Component.OPTIMIZER_STATE] == 2 * WEIGHTS
    assert found.plan.command == "Linear"
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))
    assert not torch.cuda.is_available()


def test_a_module_without_an_optimizer_makes_no_update():
    found = memcalc.estimate(
        torch.nn.Linear(4, 4), loss=torch.sum, inputs=(torch.ones(2, 4),), steps=1
    )
    assert {phase.phase for phase in found.phases} >= {Phase.FORWARD, Phase.BACKWARD}
    assert not found.optimizer_state.tensors


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"loss": torch.sum}, UsageError, "Give inputs"),
        ({"inputs": torch.ones(2, 4)}, UsageError, "returns no loss"),
        ({"inputs": torch.ones(2, 5), "loss": torch.sum}, EstimateError, "RuntimeError: "),
        ({"inputs": torch.ones(2, 4), "optim": "adamw"}, UsageError, "optim"),
    ],
)
def test_what_cannot_be_asked_of_a_module_is_told(given, error, match):
    with pytest.raises(error, match=match):
        memcalc.estimate(torch.nn.Linear(4, 4), **given)


def test_the_face_shows_what_there_is():
    assert {"estimate", "simulate", "record", "explain", "fit"} <= set(dir(memcalc))


def asks_after_a_fork():
    """A stream, in a process that was forked from one that had looked for GPUs."""
    torch.cuda._is_in_bad_fork = lambda: True
    with memcalc.simulate(gpu="t4"):
        torch.cuda.current_stream()
    return torch.cuda._is_in_bad_fork()


def test_a_process_that_was_forked_from_one_that_looked_for_gpus_has_this_one(forked):
    assert forked(asks_after_a_fork)


def what_an_older_release_leaves(gpu):
    def own():
        return torch.Tensor.__getitem__, torch.nn.functional.multi_head_attention_forward

    before = own()
    with memcalc.simulate(gpu=gpu, torch="2.0") as run:
        torch.ones(4, 4, device="cuda", requires_grad=True)[:, 0].sum().backward()
    assert run.peak.allocated
    assert own() == before


@pytest.mark.parametrize("gpu", ["t4", pytest.param("2xt4", marks=pytest.mark.nightly)])
def test_an_older_release_leaves_pytorch_as_it_was(forked, gpu):
    forked(what_an_older_release_leaves, gpu)
