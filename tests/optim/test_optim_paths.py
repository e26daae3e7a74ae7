"""The fast path on the CPU against the plain reference, tensor by tensor."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optim_problems import SETTINGS, gradients, start

from memcalc.optim import chunked, reference
from memcalc.optim.batch import Batch8bit, Batch32bit, BatchBF16, Scalars
from memcalc.optim.blockwise import blocks_of, dynamic_map

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
    beta1, beta2 = setting["betas"]
    return Scalars(
        lr=setting["lr"],
        beta1=beta1,
        beta2=beta2,
        eps=setting["eps"],
        weight_decay=setting["weight_decay"],
        step=step,
        maximize=maximize,
        decoupled=decoupled,
    )


def zeros(sizes, dtype):
    return [torch.zeros(n, dtype=dtype) for n in sizes]


def make_batch(kind, sizes, dtype, seed):
    params = [start((n,), dtype, seed=seed + i) for i, n in enumerate(sizes)]
    if kind is BatchBF16:
        names = ("exp_avg", "exp_avg_sq", "shift")
        states = {name: zeros(sizes, torch.bfloat16) for name in names}
        return BatchBF16(params=params, grads=[], keys=list(range(len(sizes))), **states)
    if kind is Batch32bit:
        states = {name: zeros(sizes, torch.float32) for name in ("state1", "state2")}
        return Batch32bit(params=params, grads=[], **states)
    blocks = [blocks_of(n) for n in sizes]
    return Batch8bit(
        params=params,
        grads=[],
        state1=zeros(sizes, torch.uint8),
        state2=zeros(sizes, torch.uint8),
        absmax1=zeros(blocks, torch.float32),
        absmax2=zeros(blocks, torch.float32),
        qmap1=dynamic_map(signed=True),
        qmap2=dynamic_map(signed=False),
    )


def copy_of(batch):
    def clone(value):
        return [t.clone() for t in value] if isinstance(value[0], torch.Tensor) else value

    lists = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{k: clone(v) for k, v in lists.items() if isinstance(v, list) and v})


def assert_equal_batches(one, other):
    for field in fields(one):
        if field.name != "keys":
            torch.testing.assert_close(
                getattr(one, field.name), getattr(other, field.name), rtol=0, atol=0, equal_nan=True
            )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam_32bit", Batch32bit), ("adam_8bit", Batch8bit), ("adamw_bf16", BatchBF16)],
)
@given(
    sizes=SIZES,
    dtype=DTYPES,
    setting=SETTINGS,
    seed=st.integers(0, 99),
    maximize=st.booleans(),
    decoupled=st.booleans(),
)
def test_the_chunked_path_equals_the_reference_bit_for_bit(
    name, kind, sizes, dtype, setting, seed, maximize, decoupled
):
    if kind is BatchBF16:
        dtype, decoupled = torch.bfloat16, True
    plain = make_batch(kind, sizes, dtype, seed)
    fast = copy_of(plain)
    for step in range(1, 4):
        grads = [gradients((n,), dtype, seed=seed + step, steps=1)[0] for n in sizes]
        numbers = scalars(setting, step=step, maximize=maximize, decoupled=decoupled)
        plain, fast = replace(plain, grads=grads), replace(fast, grads=grads)
        getattr(reference, name)(plain, numbers)
        getattr(chunked, name)(fast, numbers)
        assert_equal_batches(plain, fast)


@pytest.mark.parametrize("name", ["adam_32bit", "adam_8bit", "adamw_bf16"])
def test_a_nan_gradient_reaches_the_parameter_and_nothing_beyond_its_block(name):
    kind = {"adam_32bit": Batch32bit, "adam_8bit": Batch8bit, "adamw_bf16": BatchBF16}[name]
    batch = make_batch(kind, [1024], torch.bfloat16, 0)
    grad = torch.ones(1024, dtype=torch.bfloat16)
    grad[300] = torch.nan
    setting = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    for step in (1, 2):
        batch = replace(batch, grads=[grad])
        getattr(chunked, name)(batch, scalars(setting, step=step))
    bad = batch.params[0].isnan()
    assert bad[300]
    assert not bad[:256].any()
    assert not bad[512:].any()
