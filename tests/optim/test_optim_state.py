"""State: its bytes, its dtypes, and its way through a checkpoint."""

import copy
import io
import pickle

import bitsandbytes
import pytest
import torch
from optim_problems import gradients, start, storage_bytes, train
from torch import nn

from memcalc.optim import Adam8bit, AdamW8bit, AdamWBF16, embeddings_in_32bit

BOTH = pytest.mark.parametrize("make", [AdamW8bit, Adam8bit, AdamWBF16])
SHAPES = [(5000,), (64, 64), (63, 65), (10,), (), (0,), (300, 20)]


def parameters(shapes, dtype=torch.bfloat16):
    return [nn.Parameter(start(shape, dtype, seed=i)) for i, shape in enumerate(shapes)]


def give_gradients(params, seed):
    for i, p in enumerate(params):
        (p.grad,) = gradients(p.shape, p.dtype, seed=seed + i, steps=1)


def saved(optimizer):
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    return buffer


def loaded(buffer):
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def test_state_bytes_and_layout_of_adamw8bit_are_those_of_bitsandbytes():
    ours, theirs = parameters([(5000,), (64, 64), (10,)]), parameters([(5000,), (64, 64), (10,)])
    mine, other = AdamW8bit(ours), bitsandbytes.optim.AdamW8bit(theirs)
    for params, optimizer in ((ours, mine), (theirs, other)):
        give_gradients(params, 0)
        optimizer.step()
    assert storage_bytes(mine) == storage_bytes(other)
    for a, b in zip(mine.state.values(), other.state.values(), strict=True):
        layout = [
            {k: (v.dtype, v.shape) for k, v in values.items() if torch.is_tensor(v)}
            for values in (a, b)
        ]
        assert layout[0] == layout[1]


@BOTH
def test_there_is_no_state_before_the_first_gradient(make):
    params = parameters([(5000,), (10,)])
    optimizer = make(params)
    optimizer.step()
    assert storage_bytes(optimizer) == 0
    give_gradients(params[:1], 0)
    optimizer.step()
    assert list(optimizer.state) == params[:1]


@BOTH
@pytest.mark.parametrize("way", ["torch.save", "pickle", "deepcopy"])
def test_a_reloaded_optimizer_continues_bit_for_bit(make, way):
    params = parameters(SHAPES)
    optimizer = make(params, lr=1e-2)
    for step in range(3):
        give_gradients(params, step)
        optimizer.step()

    if way == "torch.save":
        twins = [nn.Parameter(p.detach().clone()) for p in params]
        twin = make(twins)
        twin.load_state_dict(loaded(saved(optimizer)))
    else:
        twin = (
            pickle.loads(pickle.dumps(optimizer)) if way == "pickle" else copy.deepcopy(optimizer)
        )
        twins = twin.param_groups[0]["params"]

    assert storage_bytes(twin) == storage_bytes(optimizer)
    for step in range(3, 6):
        for these, one in ((params, optimizer), (twins, twin)):
            give_gradients(these, step)
            one.step()
    assert all(torch.equal(a, b) for a, b in zip(params, twins, strict=True))
    for a, b in zip(params, twins, strict=True):
        for name, value in optimizer.state.get(a, {}).items():
            other = twin.state[b][name]
            assert torch.equal(value, other) if torch.is_tensor(value) else value == other


@BOTH
def test_a_state_dict_holds_tensors_and_an_int_step_only(make):
    params = parameters([(5000,), (10,)])
    optimizer = make(params)
    give_gradients(params, 0)
    optimizer.step()
    for values in optimizer.state_dict()["state"].values():
        assert type(values.pop("step")) is int
        assert all(type(value) is torch.Tensor for value in values.values())


def test_loading_calls_the_users_hooks_with_plain_tensors_and_keeps_dtypes():
    params = parameters([(5000,)])
    optimizer = AdamW8bit(params)
    give_gradients(params, 0)
    optimizer.step()
    seen = []
    optimizer.register_load_state_dict_pre_hook(
        lambda _, state_dict: seen.append(type(state_dict["state"][0]["state1"]))
    )
    optimizer.register_load_state_dict_post_hook(
        lambda one: seen.append(one.state[params[0]]["absmax1"].dtype)
    )
    optimizer.load_state_dict(loaded(saved(optimizer)))
    assert seen == [torch.Tensor, torch.float32]


def test_a_checkpoint_of_bitsandbytes_continues():
    value = start((5000,), torch.float32, seed=0)
    grads = gradients((5000,), torch.float32, seed=0, steps=6)
    _, theirs = train(bitsandbytes.optim.AdamW8bit, value, grads[:3])
    parameter = nn.Parameter(value.clone())
    ours = AdamW8bit([parameter], lr=0.5)
    ours.load_state_dict(loaded(saved(theirs)))
    parameter.grad = grads[3]
    ours.step()
    assert ours.param_groups[0]["lr"] == 1e-3
    assert ours.state[parameter]["step"] == 4
    assert storage_bytes(ours) == storage_bytes(theirs)


@pytest.mark.parametrize("fused", [True, False])
def test_a_checkpoint_of_torch_adamw_continues_in_bf16(fused):
    value = start((100,), torch.float32, seed=0)
    grads = gradients((100,), torch.float32, seed=0, steps=5)
    _, theirs = train(torch.optim.AdamW, value, grads, fused=fused)
    parameter = nn.Parameter(value.bfloat16())
    ours = AdamWBF16([parameter])
    ours.load_state_dict(loaded(saved(theirs)))
    parameter.grad = grads[0].bfloat16()
    ours.step()
    state = ours.state[parameter]
    assert state["step"] == 6
    assert {state[k].dtype for k in ("exp_avg", "exp_avg_sq", "shift")} == {torch.bfloat16}


def test_groups_override_bits_and_threshold():
    params = parameters([(5000,), (5000,), (300,)])
    groups = [
        {"params": params[:1]},
        {"params": params[1:2], "optim_bits": 32},
        {"params": params[2:], "min_8bit_size": 256},
    ]
    optimizer = AdamW8bit(groups)
    give_gradients(params, 0)
    optimizer.step()
    dtypes = [optimizer.state[p]["state1"].dtype for p in params]
    assert dtypes == [torch.uint8, torch.float32, torch.uint8]


def test_embeddings_and_weights_tied_to_them_can_stay_in_32_bit():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(100, 64)
            self.body = nn.Linear(64, 64)
            self.head = nn.Linear(64, 100, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    optimizer = AdamW8bit(embeddings_in_32bit(model))
    give_gradients(list(model.parameters()), 0)
    optimizer.step()
    assert optimizer.state[model.embedding.weight]["state1"].dtype == torch.float32
    assert optimizer.state[model.body.weight]["state1"].dtype == torch.uint8
    assert len(optimizer.state) == 3
