"""A language model of fourteen million parameters, written out or by PyTorch's fused functions.

    bingbong_lm.py WAY BATCH

``WAY``: manual or fused. Source: rdeniele/bingbongAI, scripts/check_model.py: one process measures
batch after batch, frees each and gives the cache back; each stands for itself here.

What decides memory: the model's own functions (src/model), all in fp32; a mask of every block in
its buffer; gradients are freed behind the forward pass, and what the model returned lives until the
step is over; gradients are clipped; AdamW of PyTorch.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional

WORDS, LENGTH, WIDE, DEEP, HEADS = 8192, 512, 384, 6, 6
STEPS = 5
"""Of the 13 of each."""


class Norm(nn.Module):
    """A layer norm, fused or not."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDE)), nn.Parameter(torch.zeros(WIDE))
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, WIDE) to the same."""
        if self.fused:
            return functional.layer_norm(x, (WIDE,), self.weight, self.bias, 1e-5)
        mean = x.mean(dim=-1, keepdim=True)
        variance = (x - mean).pow(2).mean(dim=-1, keepdim=True)
        told = (x - mean) / torch.sqrt(variance + 1e-5)
        return self.weight * told + self.bias


class Attention(nn.Module):
    """Causal, fused or with its scores."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.fused, self.drop, self.last = fused, nn.Dropout(0.0), nn.Dropout(0.0)
        mask = torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool))
        self.register_buffer("mask", mask.view(1, 1, LENGTH, LENGTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, WIDE) to the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).split(WIDE, dim=-1)
        shape = (batch, length, HEADS, WIDE // HEADS)
        q = q.view(shape).transpose(1, 2)
        k = k.view(shape).transpose(1, 2)
        v = v.view(shape).transpose(1, 2)
        if self.fused:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(WIDE // HEADS)
            allowed = self.mask[:, :, :length, :length]
            scores = scores.masked_fill(~allowed, float("-inf"))
            weights = functional.softmax(scores, dim=-1)
            out = self.drop(weights) @ v
        out = out.transpose(1, 2).contiguous().view(batch, length, WIDE)
        out = self.last(self.out(out))
        return out  # noqa: RET504 -- held while its caller returns, as in the source


class Between(nn.Module):
    """Four times as wide, by GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, WIDE) to the same."""
        hidden = functional.gelu(self.up(x))
        return self.drop(self.down(hidden))


class Block(nn.Module):
    """A norm before each half."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(fused=fused), Attention(fused=fused)
        self.norm2, self.between = Norm(fused=fused), Between()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, WIDE) to the same."""
        x = x + self.attention(self.norm1(x))
        x = x + self.between(self.norm2(x))
        return x  # noqa: RET504 -- held while its caller returns, as in the source


class Model(nn.Module):
    """Logits come of the embedding itself, which is looked up by an index."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(WORDS, WIDE) * 0.02)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDE) * 0.02)
        self.drop = nn.Dropout(0.0)
        self.blocks = nn.ModuleList(Block(fused=fused) for _ in range(DEEP))
        self.norm = Norm(fused=fused)

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens[ids]
        places = self.places[: ids.shape[1]]
        return self.drop(tokens + places)

    def _encoded(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple:
        """Logits and the loss."""
        x = self._embedded(ids)
        h = self._encoded(x)
        logits = functional.linear(h, self.tokens)
        flat = logits.reshape(-1, WORDS)
        loss = functional.cross_entropy(flat, targets.reshape(-1), ignore_index=-100)
        return logits, loss


def main(way: str, batch: str) -> None:
    """Train."""
    size = int(batch)
    model = Model(fused=way == "fused").to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step() -> float:
        ids = torch.randint(0, WORDS, (size, LENGTH), device="cuda")
        targets = torch.randint(0, WORDS, (size, LENGTH), device="cuda")
        _, loss = model(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    for _ in range(STEPS):
        step()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
