"""Random training problems, and Adam in float64 as written in the papers, in numpy."""

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

SETTINGS = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-4, 1e-2),
        "betas": st.tuples(st.sampled_from([0.0, 0.9, 0.95]), st.sampled_from([0.9, 0.99, 0.999])),
        "eps": st.sampled_from([1e-10, 1e-8, 1e-6]),
        "weight_decay": st.sampled_from([0.0, 0.01, 0.1]),
    }
)


def gradients(shape, dtype, *, seed, steps, spread=0.3, zeros=0.0):
    """Make a list of gradients whose elements differ in scale by 10 ** spread or so."""
    generator = torch.Generator().manual_seed(seed)
    scale = 0.01 * 10 ** (spread * torch.randn(shape, generator=generator))
    grads = []
    for _ in range(steps):
        grad = (torch.randn(shape, generator=generator) + 0.3) * scale
        grad *= torch.rand(shape, generator=generator) >= zeros
        grads.append(grad.to(dtype))
    return grads


def start(shape, dtype, *, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1)).to(dtype)


def train(make, value, grads, **settings):
    """Run an optimizer over given gradients; returns the parameter and the optimizer."""
    parameter = nn.Parameter(value.clone())
    optimizer = make([parameter], **settings)
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()
    return parameter.detach(), optimizer


def adam_in_float64(value, grads, *, lr, betas, eps, weight_decay, decoupled=True):
    """Loshchilov and Hutter 2019, algorithm 2, both colors; yields the parameter after a step."""
    x = value.double().numpy().copy()
    m, v = np.zeros_like(x), np.zeros_like(x)
    beta1, beta2 = betas
    for t, grad in enumerate(grads, 1):
        g = grad.double().numpy()
        if decoupled:
            x = x - lr * weight_decay * x
        else:
            g = g + weight_decay * x
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        x = x - lr * m_hat / (np.sqrt(v_hat) + eps)
        yield torch.from_numpy(x.copy())


def unit_in_last_place(values):
    """The distance between neighboring bf16 numbers at each value: 2 ** (exponent - 7)."""
    _, exponent = torch.frexp(values.float())
    return torch.ldexp(torch.ones_like(values, dtype=torch.float64), exponent - 8)


def storage_bytes(optimizer):
    """Sum the optimizer's state over distinct storages."""
    storages = {}
    for values in optimizer.state.values():
        for value in values.values():
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
