"""A language model of five million parameters that is trained at one length after another.

    juniper_lm.py LENGTH...

Source: Cinqic/juniper-math-1, scripts/benchmark_phase1.py: one process trains at 128, 512 and 1024
tokens, and reads at the end of each what was the most since its own first steps. The last length
named here is the one that is read.

What decides memory: the model's functions (src/juniper_math/model.py), all in fp32; gradients are
freed behind each step of AdamW; what the model returned is held until it returns again; each length
has an optimizer of its own, and what the one before left to the allocator is there for the next.
"""

import sys
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, INNER, TOKENS, LONGEST, BATCH = 256, 5, 4, 688, 4096, 1024, 4
STEPS = 8
"""Of the 25 at each length."""


class Made(NamedTuple):
    """What the model returns."""

    logits: torch.Tensor
    loss: torch.Tensor


class Norm(nn.Module):
    """By the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        kind = x.dtype
        x = x.float()
        variance = x.pow(2).mean(dim=-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return x.to(kind) * self.weight


class Rotary(nn.Module):
    """Tables that all layers share."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        inverse = 1.0 / (10000 ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
        angles = torch.outer(torch.arange(LONGEST, dtype=torch.float32), inverse)
        both = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", both.cos(), persistent=False)
        self.register_buffer("sin", both.sin(), persistent=False)


def half_turned(x: torch.Tensor) -> torch.Tensor:
    """Halves that changed places."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([-second, first], dim=-1)


def turned(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, H, S, D) by (S, D)."""
    cos, sin = cos[None, None], sin[None, None]
    turned_q = (q * cos) + (half_turned(q) * sin)
    turned_k = (k * cos) + (half_turned(k) * sin)
    return turned_q, turned_k


class Attention(nn.Module):
    """Causal, of PyTorch's own."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape
        shape = (batch, length, HEADS, WIDTH // HEADS)
        q = self.q(x).view(shape).transpose(1, 2)
        k = self.k(x).view(shape).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        q, k = turned(q, k, self.rotary.cos[:length], self.rotary.sin[:length])
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = attended.transpose(1, 2).contiguous().view(batch, length, WIDTH)
        return self.out(attended)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A norm before each half."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(), Attention(rotary)
        self.norm2, self.gated = Norm(), Gated()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        x = x + self.attention(self.norm1(x))
        x = x + self.gated(self.norm2(x))
        return x  # noqa: RET504 -- held while its caller returns, as in the source


class Model(nn.Module):
    """Logits come of the embedding itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        rotary = Rotary()
        self.blocks = nn.ModuleList(Block(rotary) for _ in range(LAYERS))
        self.norm = Norm()

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Made:
        """Logits and the loss of the next token."""
        tokens.min().item()
        tokens.max().item()
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits = functional.linear(x, self.tokens.weight)
        before = logits[:, :-1, :].contiguous()
        after = labels[:, 1:].contiguous()
        flat = after.view(-1)
        bool((flat != -100).any())
        loss = functional.cross_entropy(before.view(-1, TOKENS).float(), flat, ignore_index=-100)
        return Made(logits, loss)


def train(model: Model, length: int) -> None:
    """Some steps at one length."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, TOKENS, (BATCH, length), device="cuda")
    for _ in range(STEPS):
        made = model(tokens, labels=tokens)
        made.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main(*lengths: str) -> None:
    """One length after another."""
    model = Model().to("cuda")
    for length in lengths:
        train(model, int(length))
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
