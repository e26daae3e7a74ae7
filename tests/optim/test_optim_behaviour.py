"""What every torch optimizer does, done by ours."""

import inspect

import pytest
import torch
from optim_problems import gradients, start, storage_bytes, train
from torch import nn

from memcalc.optim import Adam8bit, AdamW8bit, AdamWBF16, chunked, ops
from memcalc.optim.adamwbf16 import schedule_factor

ALL = [AdamW8bit, Adam8bit, AdamWBF16]
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(params=ALL, ids=lambda make: make.__name__)
def make(request):
    return request.param


def parameter(shape=(5000,), seed=0):
    return nn.Parameter(start(shape, torch.bfloat16, seed=seed))


def with_gradient(p, seed=0):
    (p.grad,) = gradients(p.shape, p.dtype, seed=seed, steps=1)
    return p


def test_its_arguments_are_a_superset_of_those_of_torch_that_apply(make):
    theirs = inspect.signature(torch.optim.AdamW).parameters
    ours = inspect.signature(make).parameters
    for name in ("params", "lr", "betas", "eps", "maximize"):
        assert ours[name].default == theirs[name].default or name == "params"
    decoupled = inspect.signature(make).parameters["weight_decay"].default
    assert decoupled == (0.0 if make is Adam8bit else theirs["weight_decay"].default)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"eps": float("nan")}, "eps must be at least 0"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers in"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
    ],
)
def test_a_bad_setting_is_refused_with_its_name(make, setting, said):
    with pytest.raises(ValueError, match=said):
        make([parameter()], **setting)


def test_settings_of_one_class_are_checked_too():
    with pytest.raises(ValueError, match="optim_bits must be 8 or 32"):
        AdamW8bit([parameter()], optim_bits=4)
    with pytest.raises(ValueError, match="preheat_steps must be at least 0"):
        AdamWBF16([parameter()], preheat_steps=-1)
    with pytest.raises(TypeError, match=r"model\.to\(torch\.bfloat16\)"):
        AdamWBF16([nn.Parameter(torch.zeros(3))])
    with pytest.raises(TypeError, match="float64"):
        AdamW8bit([nn.Parameter(torch.zeros(3, dtype=torch.float64))])


def test_a_refused_group_leaves_the_optimizer_as_it_was(make):
    optimizer = make([parameter()])
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group({"params": [parameter()], "lr": -1.0})
    assert len(optimizer.param_groups) == 1


def test_a_group_added_later_trains_with_its_own_settings(make):
    first, second = with_gradient(parameter()), with_gradient(parameter((10,)))
    optimizer = make([first], lr=1e-2)
    optimizer.step()
    optimizer.add_param_group({"params": [second], "lr": 0.0, "weight_decay": 0.0})
    before = first.detach().clone(), second.detach().clone()
    optimizer.step()
    assert not torch.equal(first, before[0])
    assert torch.equal(second, before[1])
    assert [optimizer.state[p]["step"] for p in (first, second)] == [2, 1]


def test_a_closure_runs_with_gradients_and_its_loss_is_returned(make):
    p = parameter((20,))
    optimizer = make([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = p.float().square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]


def test_tensors_at_different_steps_update_as_they_would_alone(make):
    grads = gradients((512,), torch.bfloat16, seed=1, steps=4)
    value = start((512,), torch.bfloat16, seed=1)
    alone, _ = train(make, value, grads)
    together = [
        nn.Parameter(value.clone()),
        parameter((5000,)),
        nn.Parameter(torch.zeros(0).bfloat16()),
    ]
    optimizer = make(together)
    for step, grad in enumerate(grads):
        together[0].grad = grad.clone()
        together[1].grad = None if step % 2 else torch.ones(5000).bfloat16()
        optimizer.step()
    assert torch.equal(together[0], alone)


def test_a_sparse_gradient_is_refused_with_what_to_do(make):
    table = nn.Embedding(10, 4, sparse=True, dtype=torch.bfloat16)
    table(torch.tensor([1])).float().sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        make(table.parameters()).step()


def test_a_tensor_learning_rate_does_what_a_float_does(make):
    value = start((5000,), torch.bfloat16, seed=0)
    grads = gradients((5000,), torch.bfloat16, seed=0, steps=3)
    by_float, _ = train(make, value, grads, lr=2.0**-7)
    by_tensor, _ = train(make, value, grads, lr=torch.tensor(2.0**-7))
    assert torch.equal(by_tensor, by_float)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=5),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=5),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    ],
)
def test_a_scheduler_sets_the_rate_that_the_step_uses(make, schedule):
    p = parameter()
    optimizer = make([p], lr=1e-2, weight_decay=0.0)
    scheduler = schedule(optimizer)
    twin = nn.Parameter(p.detach().clone())
    follower = make([twin], weight_decay=0.0, betas=optimizer.param_groups[0]["betas"])
    for step in range(4):
        follower.param_groups[0].update(
            lr=optimizer.param_groups[0]["lr"], betas=optimizer.param_groups[0]["betas"]
        )
        for one in (with_gradient(p, step), with_gradient(twin, step)):
            assert one.grad is not None
        optimizer.step()
        scheduler.step()
        follower.step()
    assert torch.equal(p, twin)


def test_a_transposed_or_sliced_or_channels_last_parameter_trains_like_a_contiguous_one(make):
    base = start((64, 4, 5, 7), torch.bfloat16, seed=2)
    grads = gradients(base.shape, torch.bfloat16, seed=2, steps=3)
    plain, _ = (
        train(make, base, grads, min_8bit_size=10**6)
        if make is not AdamWBF16
        else train(make, base, grads)
    )
    wide = torch.zeros(64, 4, 5, 14, dtype=torch.bfloat16)
    wide[..., ::2] = base
    views = [
        base.clone(memory_format=torch.channels_last),
        base.transpose(0, 3).contiguous().transpose(0, 3),
        wide[..., ::2],
    ]
    for view in views:
        p = nn.Parameter(view)
        assert p.stride() == view.stride()
        optimizer = make([p], **({} if make is AdamWBF16 else {"min_8bit_size": 10**6}))
        for grad in grads:
            p.grad = grad.clone()
            optimizer.step()
        if make is AdamWBF16:
            # Another order of elements draws other random numbers.
            torch.testing.assert_close(p.detach(), plain, rtol=2**-7, atol=1e-4)
        else:
            assert torch.equal(p, plain)


def peak_of_cpu_allocations(run):
    """Bytes held at once by what the CPU allocator gave out during a call."""
    with torch.profiler.profile(profile_memory=True) as profile:
        run()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def test_the_memory_of_a_step_beyond_the_state_does_not_grow_with_the_model(make):
    peaks = []
    for chunks in (2, 6):
        params = [with_gradient(parameter((chunks * chunked.CHUNK,))) for _ in range(2)]
        optimizer = make(params)
        optimizer.step()
        peaks.append(peak_of_cpu_allocations(optimizer.step))
    assert peaks[0] == peaks[1]
    assert 0 < peaks[0] <= 40 * chunked.CHUNK


def test_gradients_of_other_strides_are_copied_for_one_parameter_at_a_time(make):
    peaks = []
    for count in (2, 6):
        wide = [
            nn.Parameter(torch.zeros(64, 64, 32, 1, dtype=torch.bfloat16)) for _ in range(count)
        ]
        for p in wide:
            p.grad = torch.zeros(64, 32, 1, 64, dtype=torch.bfloat16).permute(0, 3, 1, 2)
            assert p.grad.stride() != p.stride()
        optimizer = make(wide)
        optimizer.step()
        peaks.append(peak_of_cpu_allocations(optimizer.step))
    assert peaks[0] == peaks[1]


def test_step_can_free_the_gradients():
    p = with_gradient(parameter())
    optimizer = AdamWBF16([p])
    assert optimizer.step(zero_grad=True) is None
    assert p.grad is None
    assert storage_bytes(optimizer) == 6 * 5000


def test_equal_seeds_give_equal_runs_and_others_differ_in_rounding_only():
    value = start((5000,), torch.bfloat16, seed=0)
    grads = gradients((5000,), torch.bfloat16, seed=0, steps=5)
    runs = [train(AdamWBF16, value, grads, seed=seed) for seed in (0, 0, 1)]
    (first,), (again,), (other,) = (run[1].state.values() for run in runs)
    assert torch.equal(first["exp_avg_sq"], again["exp_avg_sq"])
    assert not torch.equal(first["exp_avg_sq"], other["exp_avg_sq"])
    torch.testing.assert_close(runs[0][0], runs[2][0], rtol=2**-7, atol=1e-4)


def test_the_built_in_schedule_heats_linearly_then_decays_as_a_power():
    factors = [schedule_factor(s, preheat_steps=4, decay_power=0.5) for s in (1, 2, 4, 16)]
    assert factors == [0.25, 0.5, 1.0, 0.5]
    assert schedule_factor(1000, preheat_steps=0, decay_power=0.0) == 1.0
    assert schedule_factor(4, preheat_steps=0, decay_power=0.5) == 0.5


def test_the_built_in_schedule_scales_the_step():
    value = start((5000,), torch.bfloat16, seed=0)
    grads = gradients((5000,), torch.bfloat16, seed=0, steps=1)
    preheated, _ = train(AdamWBF16, value, grads, lr=8e-3, preheat_steps=8)
    direct, _ = train(AdamWBF16, value, grads, lr=1e-3)
    assert torch.equal(preheated, direct)


@pytest.mark.filterwarnings("default")
def test_where_triton_cannot_run_cuda_falls_back_to_torch_code_and_says_so(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("Triton runs here")
    monkeypatch.setattr(ops.importlib.util, "find_spec", lambda name: object())
    with pytest.warns(RuntimeWarning, match="Triton cannot run here"):
        assert ops.cuda_path.__wrapped__() is chunked
    monkeypatch.setattr(ops.importlib.util, "find_spec", lambda name: None)
    assert ops.cuda_path.__wrapped__() is chunked
