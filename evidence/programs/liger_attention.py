"""Attention and feed-forward modules for liger_losses.py: what is measured, in single operators."""

import math
from collections.abc import Callable

import torch
from torch import nn

Run = Callable[[], None]
Maker = Callable[[int, dict[str, int]], Run]


def sparsemax(x: torch.Tensor) -> torch.Tensor:
    """Euclidean projection onto the simplex, over the last dimension."""
    by_size, _ = torch.sort(x, dim=-1, descending=True)
    sums = torch.cumsum(by_size, dim=-1)
    count = x.size(-1)
    ranks = torch.arange(1, count + 1, device=x.device, dtype=x.dtype)
    ranks = ranks.view([1] * (x.dim() - 1) + [count])
    bound = 1 + ranks * by_size
    support = bound > sums
    k = support.sum(dim=-1, keepdim=True).clamp(min=1)
    inside = (by_size * support).sum(dim=-1, keepdim=True)
    tau = (inside - 1) / k
    return torch.clamp(x - tau, min=0)


class Sparsemax(nn.Module):
    """The function as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return sparsemax(x)


class Scores(nn.Module):
    """Scores of four heads (B, 4, L, L) that a convolution of 3x3 mixes, below the diagonal."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4, 3, 3))
        self.bias = nn.Parameter(torch.empty(4))
        self.sparse = sparse

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """(B, 4, L, L) to the same."""
        count = scores.shape[2]
        lower = torch.ones(count, count, dtype=torch.bool, device=scores.device)
        mask = torch.tril(lower).view(1, 1, count, count)
        del lower
        far = torch.tensor(-1e9, device=scores.device, dtype=scores.dtype)
        zero = torch.tensor(0.0, device=scores.device, dtype=scores.dtype)
        masked = scores.masked_fill(~mask, far)
        probs = self._sparse(masked) if self.sparse else torch.softmax(masked, dim=-1)
        mixed = nn.functional.conv2d(probs, self.weight, self.bias, stride=1, padding=1)
        return mixed.masked_fill(~mask, zero)

    def _sparse(self, z: torch.Tensor) -> torch.Tensor:
        """What the source's module computes, its intermediate tensors alive to the end of it."""
        by_size, _ = torch.sort(z, dim=-1, descending=True)
        sums = torch.cumsum(by_size, dim=-1)
        ranks = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        ranks = ranks.view(1, 1, 1, -1)
        positive = by_size > -1e8
        condition = (1 + ranks * by_size > sums) & positive
        count = torch.sum(condition, dim=-1, keepdim=True)
        safe = torch.max(count, torch.ones_like(count))
        at_count = torch.gather(sums, dim=-1, index=safe.long() - 1)
        tau = (at_count - 1) / safe.to(z.dtype)
        tau = torch.where(count == 0, torch.full_like(tau, float("inf")), tau)
        return torch.clamp(z - tau, min=0)


class Neighbourhood(nn.Module):
    """Attention to neighbours by a mask; which ones changes no size."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1.0 / math.sqrt(width // heads)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, S, W) to the same."""
        batch, count, width = hidden.shape
        shape = (batch, count, self.heads, width // self.heads)
        query, key, value = self.q(hidden), self.k(hidden), self.v(hidden)
        query, key, value = (one.view(shape).transpose(1, 2) for one in (query, key, value))
        scores = torch.matmul(query, key.transpose(-2, -1)) * self.scale
        mask = torch.zeros(count, count, device=hidden.device, dtype=torch.bool)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(weights, value)
        mixed = mixed.transpose(1, 2).contiguous().view(batch, count, width)
        return self.out(mixed)


def feed_forward(tokens: int, act: str, *, backward: bool) -> Run:
    """A Llama's feed-forward layer of 2,048 and 4,096 in bf16 over two texts.

    Forward alone runs in a process where backward ran before: cuBLAS keeps a workspace for it.
    """
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    x = torch.randn(2, tokens, 2048, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    config = LlamaConfig(hidden_size=2048, intermediate_size=4096, hidden_act=act)
    layer = LlamaMLP(config).to("cuda").to(torch.bfloat16)

    def full() -> None:
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    if backward:
        return full
    small = torch.ones(8, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (small @ small).sum().backward()
    return lambda: layer(x)


def makers(with_gradient: Callable[..., Run]) -> dict[str, Maker]:
    """By name, of a size and settings."""

    def scores(count: int, *, sparse: bool) -> Run:
        dtype = torch.float32 if sparse else torch.bfloat16
        return with_gradient(Scores(sparse=sparse), (2, 4, count, count), dtype)

    def neighbourhood(count: int, settings: dict[str, int]) -> Run:
        width, heads = settings["width"], settings["heads"]
        shape = (settings["batch"], count, width)
        return with_gradient(Neighbourhood(width, heads), shape, torch.float32)

    return {
        "sparsemax": lambda size, _: with_gradient(Sparsemax(), (2048, size), torch.float32),
        "multi_token": lambda size, _: scores(size, sparse=False),
        "sparse_multi_token": lambda size, _: scores(size, sparse=True),
        "neighbourhood": neighbourhood,
        "geglu": lambda size, _: feed_forward(size, "gelu_pytorch_tanh", backward=True),
        "geglu_forward": lambda size, _: feed_forward(size, "gelu_pytorch_tanh", backward=False),
        "swiglu": lambda size, _: feed_forward(size, "silu", backward=True),
        "swiglu_forward": lambda size, _: feed_forward(size, "silu", backward=False),
    }
