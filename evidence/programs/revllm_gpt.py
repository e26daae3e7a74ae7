"""Updates of a small GPT in fp16 whose blocks are stored, made again, or run backwards.

    revllm_gpt.py conventional|checkpointed|coupled BATCH [UPDATE]

BATCH texts of 512 tokens go at a time. With UPDATE, that many of them make an update, and attention
is tried out first, as the benchmark of the source does; without, BATCH of them, as its search for
the largest batch.
Source: f20201351h-maker/assignment-13-reversible-llm-training, src/revllm: model.py, profile.py,
backend.py and train.py.

What decides memory: fp16 by autocast with PyTorch's scaler; AdamW, fused; gradients are dropped
before each update. ``coupled`` keeps two streams and nothing in between: backward finds the inputs
of a block from its outputs, runs it again, and adds to gradients that are held for all weights.
Attention is the efficient one of xFormers, all that a T4 has. Two updates warm up, and three stand
for the 20 or 100.
"""

import gc
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

LAYERS, HEADS, WIDTH, LENGTH, TOKENS, PART = 9, 6, 384, 512, 10000, 0.5
WARM, UPDATES = 2, 3


class Attention(nn.Module):
    """Causal."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = (one.transpose(1, 2) for one in qkv.unbind(dim=2))
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    """Two parts, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, bias=False) for _ in "12")
        self.attention = Attention()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        """Attention's part."""
        return self.attention(self.norm1(x))

    def second(self, x: torch.Tensor) -> torch.Tensor:
        """The perceptron's."""
        x = self.norm2(x)
        return self.narrow(functional.gelu(self.wide(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both, in the ordinary way."""
        a = self.first(x)
        return x + (a + self.second(x + a))


def mixed() -> torch.autocast:
    """Fp16."""
    return torch.autocast("cuda", dtype=torch.float16)


class Coupled(torch.autograd.Function):
    """All blocks on two streams; only their ends are kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, blocks: nn.ModuleList, *weights: torch.Tensor) -> Any:
        """Both streams."""
        ctx.blocks = blocks
        with torch.no_grad():
            u, v = x, x
            for block in blocks:
                u = u + PART * block.first(v)
                v = v + PART * block.second(u)
        ctx.save_for_backward(x, u, v, *weights)
        return u, v

    @staticmethod
    def backward(ctx: Any, grad_u: torch.Tensor, grad_v: torch.Tensor) -> Any:
        """Block by block, the last first."""
        _x, u, v, *weights = ctx.saved_tensors
        place = {id(one): number for number, one in enumerate(weights)}
        sums = [torch.zeros_like(one) for one in weights]
        for block in reversed(ctx.blocks):
            own = tuple(block.parameters())
            with torch.no_grad(), mixed():
                old_v = v - PART * block.second(u)
                old_u = u - PART * block.first(old_v)
            with torch.enable_grad(), mixed():
                from_u, from_v = (one.detach().requires_grad_(True) for one in (old_u, old_v))
                to_u = from_u + PART * block.first(from_v)
                to_v = from_v + PART * block.second(to_u)
                found = torch.autograd.grad((to_u, to_v), (from_u, from_v, *own), (grad_u, grad_v))
            for one, gradient in zip(own, found[2:], strict=True):
                sums[place[id(one)]] += gradient
            grad_u, grad_v = found[:2]
            u, v = old_u, old_v
        return (grad_u + grad_v, None, *sums)


class Model(nn.Module):
    """Tokens to the sum of their losses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def through(self, x: torch.Tensor) -> torch.Tensor:
        """All blocks."""
        if self.kind == "coupled":
            u, v = Coupled.apply(x, self.blocks, *self.blocks.parameters())
            return 0.5 * (u + v)
        for block in self.blocks:
            again = self.kind == "checkpointed"
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x

    def forward(self, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.through(x)
        x = self.norm(x)
        logits = self.head(x)
        full = logits.float()
        return functional.cross_entropy(full.flatten(0, 1), wanted.flatten(), reduction="sum")


def try_attention(batch: int) -> None:
    """One of its own, there and back."""
    attention = Attention().to("cuda").train()
    x = torch.randn(batch, LENGTH, WIDTH, device="cuda", requires_grad=True)
    with mixed():
        attention(x).sum().backward()
    del x, attention
    gc.collect()
    torch.cuda.empty_cache()


def main(kind: str, batch: str, update: str = "") -> None:
    """Warm up, and train."""
    if update:
        try_attention(int(batch))
    model = Model(kind).to("cuda").train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, one in model.named_parameters():
        groups[one.ndim > 1 and not name.startswith(("tokens", "places"))].append(one)
    settings = [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False]}]
    adam = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}
    optimizer = torch.optim.AdamW(settings, **adam)
    scaler = torch.amp.GradScaler("cuda")
    shape = int(update or batch), LENGTH
    ids, wanted = (torch.randint(2, TOKENS, shape, device="cuda") for _ in "iw")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        finite = torch.ones((), device="cuda", dtype=torch.bool)
        for start in range(0, len(ids), int(batch)):
            part = slice(start, start + int(batch))
            with mixed():
                loss = model(ids[part], wanted[part]) / wanted.numel()
            finite &= torch.isfinite(loss.detach())
            scaler.scale(loss).backward()
        bool(finite)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(UPDATES):
        step()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
