"""The whole model that segments are held against: 838 million parameters, attention written out.

    segmented_gpt.py DROPOUT [padded]

Source: paymankeshtkaruni/segmented-llm-training-inference, full_model/scripts/_cost_lib.py
(``padded``: its model is told which token pads, though none does) and scale_cost.py.

What decides memory: the model's functions (src/.../model/full_model.py) in fp32; a mask in a buffer
of every layer; two groups of AdamW; tokens come from the host anew each step, and gradients are
freed before its forward pass; the loss is of a copy of all logits but the last.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional

WORDS, LENGTH, DEEP, WIDE, HEADS, INNER, BATCH = 50257, 512, 36, 1280, 20, 5120, 4
PAD = WORDS - 1
STEPS = 4


class Attention(nn.Module):
    """Causal, with its scores."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.first, self.last = nn.Dropout(dropout), nn.Dropout(dropout)
        mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=1)
        self.register_buffer("mask", mask.view(1, 1, LENGTH, LENGTH), persistent=False)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """(B, T, WIDE) to the same."""
        batch, length, _ = x.shape
        qkv = self.qkv(x)
        query, key, value = qkv.chunk(3, dim=-1)
        shape = (batch, length, HEADS, WIDE // HEADS)
        query = query.view(shape).transpose(1, 2)
        key = key.view(shape).transpose(1, 2)
        value = value.view(shape).transpose(1, 2)
        scores = query @ key.transpose(-2, -1)
        scores = scores / math.sqrt(WIDE // HEADS)
        mask = self.mask[:, :, :length, :length]
        scores = scores.masked_fill(mask, float("-inf"))
        if padding is not None:
            scores = scores.masked_fill(padding, float("-inf"))
        weights = functional.softmax(scores, dim=-1)
        weights = self.first(weights)
        output = weights @ value
        output = output.transpose(1, 2).contiguous()
        output = output.view(batch, length, WIDE)
        output = self.out(output)
        output = self.last(output)
        return output  # noqa: RET504 -- held while its caller returns, as in the source


class Between(nn.Module):
    """Four times as wide, by GELU."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up, self.gelu, self.down = nn.Linear(WIDE, INNER), nn.GELU(), nn.Linear(INNER, WIDE)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, WIDE) to the same."""
        x = self.up(x)
        x = self.gelu(x)
        x = self.down(x)
        x = self.drop(x)
        return x  # noqa: RET504 -- held while its caller returns, as in the source


class Block(nn.Module):
    """A norm before each half."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDE), Attention(dropout)
        self.norm2, self.between = nn.LayerNorm(WIDE), Between(dropout)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """(B, T, WIDE) to the same."""
        x = x + self.attention(self.norm1(x), padding)
        x = x + self.between(self.norm2(x))
        return x  # noqa: RET504 -- held while its caller returns, as in the source


class Model(nn.Module):
    """Embeddings of tokens and places; a head of its own."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(LENGTH, WIDE)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(DEEP))
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, WORDS, bias=False)

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(0, ids.shape[1], dtype=torch.long, device=ids.device)
        tokens = self.tokens(ids)
        where = self.places(places)
        x = tokens + where
        x = self.drop(x)
        return x  # noqa: RET504 -- held while its caller returns, as in the source

    def forward(self, ids: torch.Tensor, pad: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and what the head made them of."""
        padding = None
        if pad is not None:
            padding = (ids == pad).view(ids.size(0), 1, 1, ids.size(1))
        x = self._embedded(ids)
        for block in self.blocks:
            x = block(x, padding)
        hidden = self.norm(x)
        logits = self.head(hidden)
        return logits, hidden


def lost(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Each token by the logits before it."""
    before = logits[:, :-1, :].contiguous()
    after = labels[:, 1:].contiguous()
    return functional.cross_entropy(before.view(-1, WORDS), after.view(-1), ignore_index=-100)


def main(dropout: str, *words: str) -> None:
    """Train."""
    pad = PAD if "padded" in words else None
    torch.zeros(1, device="cuda")
    model = Model(float(dropout)).to("cuda")
    some = [one for one in model.parameters() if one.dim() >= 2]
    rest = [one for one in model.parameters() if one.dim() < 2]
    groups = [{"params": some, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))
    model.train()

    def step() -> torch.Tensor:
        ids = torch.randint(0, PAD, (BATCH, LENGTH))
        labels = ids.clone()
        ids, labels = ids.to("cuda"), labels.to("cuda")
        optimizer.zero_grad()
        logits, _ = model(ids, pad)
        loss = lost(logits, labels)
        loss.backward()
        optimizer.step()
        return loss

    step()
    for _ in range(STEPS - 1):
        loss = step()
        loss.item()
    print(f"allocated {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
