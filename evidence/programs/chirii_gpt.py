"""A small GPT in mixed precision, whose attention is written out.

    chirii_gpt.py MODEL...

``MODEL``: d (12 layers of 320) or e (12 of 448). Source: KPCHIRAGGUPTHA/chirii_ai,
phase8/phase8d_gpu_pilot.py: one process trains d and then e, so that e meets what d left cached.
The last that is named is read.

What decides memory: the model's functions (model.py): a float mask in a buffer of every layer,
dropout of 0.1 at five places of each; fp16 by autocast with PyTorch's scaler; four batches of
eight pieces of 128 tokens a step, each brought from the host; gradients are freed before the
first, and clipped; what the model returned lives until the next batch.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional

WORDS, LENGTH, BATCH, ACCUMULATED, DROPOUT = 1024, 128, 8, 4, 0.1
SIZES = {"d": (12, 10, 320), "e": (12, 14, 448)}
STEPS = 4
"""Of 50."""


class Attention(nn.Module):
    """Causal, with its scores."""

    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.first, self.last = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)
        self.heads, self.wide = heads, wide
        mask = torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH)
        self.register_buffer("bias", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, wide) to the same."""
        batch, length, wide = x.size()
        q, k, v = self.c_attn(x).split(self.wide, dim=2)
        shape = (batch, length, self.heads, wide // self.heads)
        k = k.view(shape).transpose(1, 2)
        q = q.view(shape).transpose(1, 2)
        v = v.view(shape).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        att = functional.softmax(att, dim=-1)
        att = self.first(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(batch, length, wide)
        y = self.last(self.c_proj(y))
        return y  # noqa: RET504 -- held while its caller returns, as in the source


class Between(nn.Module):
    """Four times as wide, by GELU."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.c_fc, self.gelu = nn.Linear(wide, 4 * wide), nn.GELU()
        self.c_proj, self.drop = nn.Linear(4 * wide, wide), nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, wide) to the same."""
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        x = self.drop(x)
        return x  # noqa: RET504 -- held while its caller returns, as in the source


class Block(nn.Module):
    """A norm before each half."""

    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(wide), Attention(wide, heads)
        self.ln_2, self.mlp = nn.LayerNorm(wide), Between(wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, wide) to the same."""
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x  # noqa: RET504 -- held while its caller returns, as in the source


class Model(nn.Module):
    """Logits come of the embedding itself."""

    def __init__(self, deep: int, heads: int, wide: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, wide), nn.Embedding(LENGTH, wide)
        self.drop = nn.Dropout(DROPOUT)
        self.h = nn.ModuleList(Block(wide, heads) for _ in range(deep))
        self.ln_f, self.head = nn.LayerNorm(wide), nn.Linear(wide, WORDS, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple:
        """Logits and the loss."""
        places = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        tokens = self.wte(ids)
        where = self.wpe(places)
        x = self.drop(tokens + where)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        logits = self.head(x)
        loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


def pilot(name: str) -> None:
    """Some steps of one model."""
    torch.cuda.reset_peak_memory_stats()
    model = Model(*SIZES[name]).to("cuda")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(ACCUMULATED):
            x = torch.randint(0, WORDS, (BATCH, LENGTH)).to("cuda")
            y = torch.randint(0, WORDS, (BATCH, LENGTH)).to("cuda")
            with torch.autocast("cuda", dtype=torch.float16):
                _, loss = model(x, y)
                loss = loss / ACCUMULATED
            scaler.scale(loss).backward()
            loss.item()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"{name}: allocated {allocated}, reserved {reserved}")


def main(*names: str) -> None:
    """One after another."""
    for name in names:
        pilot(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
