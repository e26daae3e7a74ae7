"""Updates of a GPT of 23M whose blocks are stored, or run backwards, with a loss piece by piece.

    reversible_gpt.py stored|backwards|seeded BATCH [flash]

``backwards``: each block adds to what was before the last one (``rev_mid`` of the source);
``seeded`` keeps the first stream for it too.
Source: riteshverma/reversible-20m, model.py and train.py.

What decides memory: bf16 by autocast, streams in fp32; backward finds the inputs of a block from
its outputs, runs it again and adds to the weights' gradients; the loss goes by 8,192 tokens and
makes their logits twice. AdamW is fused; batches come from the host, without an evaluation. Peaks
are of the whole run, for which four updates stand. PyTorch's builds for Windows have had no flash
attention; with ``flash``, it is there.
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYERS, HEADS, WIDTH, LENGTH, TOKENS, PIECE = 6, 8, 512, 512, 8192, 8192
UPDATES = 4
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
Turns = tuple[torch.Tensor, torch.Tensor]


def turned(x: torch.Tensor, turns: Turns) -> torch.Tensor:
    """(B, S, HEADS, D) to the same, in fp32."""
    cos, sin = (one[None, :, None, :] for one in turns)
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Attention(nn.Module):
    """Causal, with turned queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3 * HEADS, WIDTH // HEADS).chunk(3, dim=2)
        q = turned(q, turns)
        k = turned(k, turns)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        with sdpa_kernel(BACKENDS):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """Two parts, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, bias=False) for _ in "12")
        self.attention = Attention()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        x = x + self.attention(self.norm1(x), turns)
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Loss(torch.autograd.Function):
    """Cross entropy of states and a head, piece by piece."""

    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: torch.Tensor, head: torch.Tensor, wanted: torch.Tensor) -> Any:
        """The mean."""
        ctx.save_for_backward(x, head, wanted)
        with torch.no_grad():
            loss = x.new_zeros((), dtype=torch.float32)
            for start in range(0, len(x), PIECE):
                part, asked = x[start : start + PIECE], wanted[start : start + PIECE]
                logits = functional.linear(part, head).float()
                loss = loss + functional.cross_entropy(logits, asked, reduction="sum")
        return loss / len(x)

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Probabilities less what was asked for, times the other factor."""
        x, head, wanted = ctx.saved_tensors
        of_x, of_head = torch.zeros_like(x), torch.zeros_like(head)
        scale = grad / len(x)
        for start in range(0, len(x), PIECE):
            part, asked = x[start : start + PIECE], wanted[start : start + PIECE]
            logits = functional.linear(part, head).float()
            likely = torch.softmax(logits, dim=-1)
            likely[torch.arange(len(asked), device=x.device), asked] -= 1.0
            likely = likely * scale
            of_head += likely.T @ part
            of_x[start : start + PIECE] = likely @ head
        return of_x, of_head, None


def mixed() -> torch.autocast:
    """Bf16, whose casts of weights are not kept."""
    return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)


def give(block: nn.Module, found: tuple[torch.Tensor, ...]) -> None:
    """Gradients to weights."""
    for one, gradient in zip(block.parameters(), found, strict=True):
        one.grad = gradient if one.grad is None else one.grad + gradient


class Backwards(torch.autograd.Function):
    """All blocks, each on what was before the last."""

    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx: Any, start: torch.Tensor, model: nn.Module, turns: Turns) -> Any:
        """The last two."""
        ctx.blocks, ctx.turns = model.blocks, turns
        with torch.no_grad():
            before, x = torch.zeros_like(start), start
            for block in model.blocks:
                before, x = x, before + block(x, turns)
        ctx.save_for_backward(*((before, x, start) if model.kind == "seeded" else (before, x)))
        return before, x

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad_x: torch.Tensor, grad_next: torch.Tensor) -> Any:
        """Block by block, the last first."""
        kept = ctx.saved_tensors
        x, after = kept[0], kept[1]
        for number, block in reversed(list(enumerate(ctx.blocks))):
            if number == 0 and len(kept) > 2:
                x = kept[2]
                before = torch.zeros_like(x)
            else:
                with mixed(), torch.no_grad():
                    before = after - block(x, ctx.turns)
            before, leaf = before.detach().requires_grad_(True), x.detach().requires_grad_(True)
            with mixed(), torch.enable_grad():
                again = before + block(leaf, ctx.turns)
            found = torch.autograd.grad((again,), [before, leaf, *block.parameters()], (grad_next,))
            new_before, new_x = found[0], grad_x + found[1]
            give(block, found[2:])
            x, after = before.detach(), x.detach()
            grad_x, grad_next = new_before, new_x
        return grad_next, None, None


class Model(nn.Module):
    """Tokens to a loss."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(LENGTH).float(), 1e4 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The loss."""
        turns = self.cos, self.sin
        x = self.tokens(ids)
        if self.kind == "stored":
            for block in self.blocks:
                x = block(x, turns)
            x = self.norm(x)
        else:
            before, last = Backwards.apply(x, self, turns)
            x = self.norm(before + last)
        return Loss.apply(x.reshape(-1, WIDTH), self.tokens.weight, wanted.reshape(-1))


def main(kind: str, batch: str, *words: str) -> None:
    """Train."""
    if "flash" in words:
        BACKENDS.append(SDPBackend.FLASH_ATTENTION)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model(kind).to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    groups = [
        {"params": [one for one in model.parameters() if one.ndim >= 2], "weight_decay": 0.1},
        {"params": [one for one in model.parameters() if one.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), fused=True)
    for _ in range(UPDATES):
        drawn = (torch.randint(0, TOKENS, (int(batch), LENGTH)) for _ in "xy")
        x, y = (one.to("cuda", non_blocking=True) for one in drawn)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
