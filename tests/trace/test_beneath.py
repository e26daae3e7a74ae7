"""Operators are seen below autograd, and PyTorch does what it does where nobody looks."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from memcalc.trace.torch_private.beneath import seeing, unseen
from memcalc.trace.torch_private.tensors import storage_key


class Mode(TorchDispatchMode):
    """Names of the operators that reach PyTorch, as a dispatch mode sees them."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def sums():
    """Gradients that meet."""
    x = torch.randn(8, requires_grad=True)
    y = x * 2
    (y.relu() + y.sigmoid()).sum().backward()


def biased():
    """A linear layer whose bias is no part of the product."""
    layer, x = torch.nn.Linear(4, 3), torch.ones(2, 2, 4)[:, :, ::2].repeat(1, 1, 2).transpose(0, 1)
    F.linear(x, layer.weight, layer.bias).sum().backward()


def masked():
    """Attention by single operators, as old GPUs run it."""
    q, k, v = (torch.randn(1, 2, 8, 8, requires_grad=True) for _ in range(3))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        F.scaled_dot_product_attention(q, k, v, is_causal=True)


def named(program, by_mode):
    """Names of additions that are seen, by a mode or without one."""
    names = []

    def see(func, args, kwargs):
        names.append(func._schema.name)
        with unseen():
            out = func(*args, **kwargs)
            for tensor in out if isinstance(out, list | tuple) else [out]:
                storage_key(tensor)
            return out

    if by_mode:
        with Mode() as mode:
            PROGRAMS[program]()
        names = mode.names
    else:
        with seeing(see):
            PROGRAMS[program]()
        torch.ones(3).add(1)
    return [name.removeprefix("aten::") for name in names if name.startswith("aten::add")]


PROGRAMS = {"sums": sums, "biased": biased, "masked": masked}


@pytest.mark.parametrize(
    ("program", "by_mode", "beneath"),
    [
        ("sums", ["add", "add"], ["add", "add_"]),
        ("biased", ["add"], ["add_"]),
        ("masked", ["add"], ["add_"]),
    ],
)
def test_what_is_written_in_place_is_seen_so_where_no_mode_is_in_the_way(
    program, by_mode, beneath, forked
):
    assert forked(named, program, True) == by_mode
    assert forked(named, program, False) == beneath


class Pair(torch.Tensor):
    """Two tensors that are computed with as one, as sharded and quantised ones are."""

    @staticmethod
    def __new__(cls, one, other):
        made = torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)
        made.parts = one, other
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        parts = [
            func(*(arg.parts[at] if isinstance(arg, Pair) else arg for arg in args))
            for at in range(2)
        ]
        return Pair(*parts)


def makes():
    """What needs new objects, operators that are given functions, and compilers."""
    names = []

    def see(func, args, kwargs):
        names.append(func._schema.name)
        with unseen():
            return func(*args, **kwargs)

    with seeing(see):
        parameter = torch.nn.Parameter(torch.ones(3))
        buffer = torch.ones(3).as_subclass(torch.nn.Buffer)
        found = torch.cond(parameter.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), [parameter])
        whole = torch.func.vmap(torch.func.grad(lambda x: (x * x).sum()))(torch.ones(2, 3))
        pair = (Pair(torch.ones(3), torch.zeros(3)) + 1).parts
        with Mode() as mode:
            torch.ones(3).tanh()
        before = len(names)
        compiled = torch.compile(lambda x: x.exp() + 1, backend="aot_eager")(torch.ones(3))
    return [
        type(parameter).__name__,
        type(buffer).__name__,
        torch.allclose(found, torch.ones(3).sin()),
        whole.tolist(),
        [part.tolist() for part in pair],
        [name for name in mode.names if name in names],
        torch.allclose(compiled, torch.full((3,), 1.0).exp() + 1),
        names[before:].count("aten::exp"),
    ]


def test_parameters_transforms_and_compilers_work_while_operators_are_seen(forked):
    assert forked(makes) == [
        *("Parameter", "Buffer", True, [[2.0] * 3] * 2, [[2.0] * 3, [1.0] * 3]),
        *(["aten::ones", "aten::tanh"], True, 1),
    ]


def test_a_storage_that_is_named_is_not_held():
    tensor = torch.ones(3)
    assert torch._C._storage_Use_Count(storage_key(tensor)) == 1
    storage = tensor.untyped_storage()
    assert storage_key(tensor) == storage._cdata
    assert torch._C._storage_Use_Count(storage._cdata) == 2
