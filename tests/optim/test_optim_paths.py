"""The fast path on the CPU against the plain reference, tensor by tensor."""

import copy

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from optim_problems import SETTINGS, gradients, start

from memcalc.optim import chunked
from memcalc.optim.blockwise import count_blocks, dynamic_map
from memcalc.optim.scalars import Scalars

SIZES = st.lists(st.sampled_from([1, 7, 255, 256, 257, 512, 1024, 3000]), min_size=1, max_size=6)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    """Chunks of 1024 elements, so that small tensors exercise every cut."""
    before = chunked.CHUNK
    chunked.CHUNK = 1024
    yield
    chunked.CHUNK = before


def scalars(setting, *, step, maximize=False, decoupled=True):
    numbers = setting["lr"], *setting["betas"], setting["eps"], setting["weight_decay"]
    return Scalars(*numbers, step=step, maximize=maximize, decoupled=decoupled)


def zeros(sizes, dtype):
    return [torch.zeros(n, dtype=dtype) for n in sizes]


def make_batch(name, sizes, dtype, seed):
    """Make the arguments of an update by name; gradients are given at each step."""
    batch = {"params": [start((n,), dtype, seed=seed + i) for i, n in enumerate(sizes)]}
    batch["grads"] = []
    if name == "adamw_bf16":
        names = ("exp_avg", "exp_avg_sq", "shift")
        batch |= {name: zeros(sizes, torch.bfloat16) for name in names}
        return batch | {"keys": list(range(len(sizes)))}
    kind = torch.float32 if name == "adam_32bit" else torch.uint8
    batch |= {name: zeros(sizes, kind) for name in ("state1", "state2")}
    if name == "adam_8bit":
        blocks = [count_blocks(n) for n in sizes]
        batch |= {name: zeros(blocks, torch.float32) for name in ("absmax1", "absmax2")}
        batch |= {"qmap1": dynamic_map(signed=True), "qmap2": dynamic_map(signed=False)}
    return batch


@pytest.mark.parametrize("name", ["adam_32bit", "adam_8bit", "adamw_bf16"])
@given(
    sizes=SIZES,
    dtype=DTYPES,
    setting=SETTINGS,
    seed=st.integers(0, 99),
    maximize=st.booleans(),
    decoupled=st.booleans(),
)
def test_the_chunked_path_equals_the_reference_bit_for_bit(
    name, sizes, dtype, setting, seed, maximize, decoupled
):
    if name == "adamw_bf16":
        dtype, decoupled = torch.bfloat16, True
    plain = make_batch(name, sizes, dtype, seed)
    fast = copy.deepcopy(plain)
    for step in range(1, 4):
        grads = [gradients((n,), dtype, seed=seed + step, steps=1)[0] for n in sizes]
        numbers = scalars(setting, step=step, maximize=maximize, decoupled=decoupled)
        getattr(reference, name)(**plain | {"grads": grads}, s=numbers)
        getattr(chunked, name)(**fast | {"grads": grads}, s=numbers)
        torch.testing.assert_close(plain, fast, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["adam_32bit", "adam_8bit", "adamw_bf16"])
def test_a_nan_gradient_reaches_the_parameter_and_nothing_beyond_its_block(name):
    batch = make_batch(name, [1024], torch.bfloat16, 0)
    grad = torch.ones(1024, dtype=torch.bfloat16)
    grad[300] = torch.nan
    setting = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    for step in (1, 2):
        getattr(chunked, name)(**batch | {"grads": [grad]}, s=scalars(setting, step=step))
    bad = batch["params"][0].isnan()
    assert bad[300]
    assert not bad[:256].any()
    assert not bad[512:].any()
