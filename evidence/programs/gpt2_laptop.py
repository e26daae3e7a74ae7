"""GPT-2 of 124M that is trained in bfloat16 by autocast, eager, on a GPU with 6 GB.

    gpt2_laptop.py BATCH before|after

Source: zuurashad/gpt2-from-scratch, bench_throughput.py: micro-steps whose gradients are added up
are timed before AdamW has its moments (before), and again behind its first step (after).

What decides memory: the model of train_gpt2_refined.py, nanoGPT's with the vocabulary rounded up to
50,304, whose head is the embedding; logits are held while backward runs, in bfloat16, and the loss
takes them to fp32; gradients are never freed in the first part; AdamW is fused.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, TOKENS, LENGTH = 768, 12, 12, 50304, 1024
STEPS = 4
"""Of the 14 in each part."""


class Attention(nn.Module):
    """Causal, of PyTorch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape
        three = self.three(x)
        q, k, v = three.split(WIDTH, dim=2)
        shape = (batch, length, HEADS, WIDTH // HEADS)
        k = k.view(shape).transpose(1, 2)
        q = q.view(shape).transpose(1, 2)
        v = v.view(shape).transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, WIDTH)
        y = self.out(y)
        return y  # noqa: RET504 -- held while its caller returns, as in the source


class Perceptron(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gelu = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        x = self.up(x)
        x = self.gelu(x)
        return self.down(x)


class Block(nn.Module):
    """A norm before each half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.perceptron = nn.LayerNorm(WIDTH), Perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        attended = self.attention(self.norm1(x))
        x = x + attended
        x = x + self.perceptron(self.norm2(x))
        return x  # noqa: RET504 -- held while its caller returns, as in the source


class Model(nn.Module):
    """GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.tokens.weight = self.head.weight

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and their loss."""
        numbers = torch.arange(0, tokens.shape[1], dtype=torch.long, device=tokens.device)
        places = self.places(numbers)
        words = self.tokens(tokens)
        x = words + places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits = self.head(x)
        loss = functional.cross_entropy(logits.view(-1, TOKENS), targets.view(-1))
        return logits, loss


def main(batch: str, part: str) -> None:
    """One part or both."""
    model = Model().cuda().train()
    decayed = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() == 1]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    tokens, targets = (torch.randint(0, 50257, (int(batch), LENGTH), device="cuda") for _ in "xy")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _, loss = model(tokens, targets)
        loss.backward()

    for _ in range(STEPS):
        step()
    if part == "after":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(STEPS):
            step()
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
