"""Pretraining of From-0-to-AGI's language models.

    zero_lm.py train|kept|probe SIZE BATCH ACCUMULATED LENGTH

A Llama whose queries and keys are normed too, its head the embedding's weight, every block
recomputed in backward, but for ``kept``; weights in fp32, forward under autocast to bf16, the loss
outside it over logits in fp32; fused AdamW with two groups. ``probe`` is three steps; the others
validate after two and go on: twenty batches made at once, their losses, and the same once more for
bits per byte.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

TOKENS, VALIDATED = 65536, 20
SIZES = {
    # Width, blocks, heads, heads of keys, width of a head, inner width, longest sequence.
    "l20m": (256, 8, 4, 2, 64, 768, 2048),
    "l60m": (512, 12, 8, 4, 64, 1536, 2048),
    "l150m": (768, 16, 12, 4, 64, 2304, 2048),
    "main": (1280, 28, 16, 8, 128, 3584, 4096),
    "longctx": (1280, 28, 16, 8, 128, 3584, 32768),
}


class Norm(nn.Module):
    """RMSNorm, its root in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to the same."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings of the two halves of a head."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal, in groups."""

    def __init__(self, width: int, heads: int, groups: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.q = nn.Linear(width, heads * head, bias=False)
        self.k = nn.Linear(width, groups * head, bias=False)
        self.v = nn.Linear(width, groups * head, bias=False)
        self.out = nn.Linear(heads * head, width, bias=False)
        self.q_norm, self.k_norm = Norm(head), Norm(head)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """(B, S, width) to the same."""
        batch, length, _ = x.shape
        shape = batch, length, -1, self.head
        q = self.q_norm(self.q(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(shape)).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        q = turned(q, cos, sin)
        k = turned(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Inner(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to the same."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Norms first."""

    def __init__(self, width: int, heads: int, groups: int, head: int, inner: int) -> None:
        super().__init__()
        self.attention_norm, self.inner_norm = Norm(width), Norm(width)
        self.attention = Attention(width, heads, groups, head)
        self.inner = Inner(width, inner)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """(B, S, width) to the same."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.inner(self.inner_norm(x))


class Model(nn.Module):
    """Logits of the next token."""

    def __init__(self, size: str, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        width, blocks, heads, groups, head, inner, longest = SIZES[size]
        self.embedding = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, head, inner) for _ in range(blocks))
        self.norm = Norm(width)
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.zeros(longest, head), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, S) to (B, S, TOKENS)."""
        x = self.embedding(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin)
        return functional.linear(self.norm(x), self.embedding.weight)


def batch_of(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and those that follow them: two views of one tensor."""
    tokens = torch.zeros(batch, length + 1, dtype=torch.int64).pin_memory()
    tokens = tokens.to("cuda", non_blocking=True)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy, outside autocast."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(x)
    return functional.cross_entropy(logits.float().view(-1, TOKENS), y.reshape(-1))


@torch.no_grad()
def validate(model: nn.Module, batch: int, length: int) -> None:
    """Two passes over the same batches."""
    batches = [batch_of(batch, length) for _ in range(VALIDATED)]
    model.eval()
    for _ in range(2):
        losses = [loss_of(model, x, y).float() for x, y in batches]
        torch.stack(losses).mean().item()
    model.train()


def main(mode: str, size: str, batch: str, accumulated: str, length: str) -> None:
    """Train."""
    model = Model(size, recompute=mode != "kept").to("cuda")
    named = list(model.named_parameters())
    decayed = [one for name, one in named if one.dim() > 1 and "embedding" not in name]
    others = [one for name, one in named if one.dim() < 2 or "embedding" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    model.train()
    for step in range(3):
        total = torch.zeros((), device="cuda")
        for _ in range(int(accumulated)):
            x, y = batch_of(int(batch), int(length))
            loss = loss_of(model, x, y)
            (loss / int(accumulated)).backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if mode != "probe" and step == 1:
            validate(model, int(batch), int(length))
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
