"""Steps of DarkMind v2, a small language model, at the sizes between which its authors chose.

    darkmind_lm.py SIZE BATCH sdpa|fallback [checkpointing]

SIZE is A, B, C or D: 63, 80, 104 or 118 million parameters, 512 tokens a text. ``sdpa`` is
attention by PyTorch, ``fallback`` by products, a mask and a softmax.
Source: petrofi/darkmind-30m, darkmind_v2/training/benchmark_base_candidates.py and
darkmind_v2/modeling.

What decides memory: weights, gradients and AdamW's states are in bf16, and autocast gives
LayerNorm, softmax and the loss fp32; every layer has a mask of its own; the head shares the
embedding's weight; logits without the last are copied for the loss, and all of them live until the
step is over. AdamW goes by single tensors. cuBLAS gets the workspaces of
``CUBLAS_WORKSPACE_CONFIG``. PyTorch's build for Windows has no flash attention. Two steps stand for
the ten that warm up, and two for the thirty behind which peaks are read.
"""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

SIZES = {"A": (512, 8, 16), "B": (640, 10, 13), "C": (768, 12, 12), "D": (768, 12, 14)}
"""Width, heads, layers."""
TOKENS, LENGTH = 24000, 512
WARM, STEPS = 2, 2
WITHOUT_FLASH = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Attention(nn.Module):
    """Causal, by one product for queries, keys and values."""

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        self.register_buffer("mask", mask[None, None])

    def by_products(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Scores, mask, softmax."""
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        allowed = self.mask[:, :, : q.shape[2], : q.shape[2]]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = functional.softmax(scores, dim=-1)
        return weights @ v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, width) to the same."""
        batch, length, width = x.shape
        qkv = self.qkv(x)
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (part.view(shape).transpose(1, 2) for part in qkv.split(width, dim=-1))
        if self.kind == "sdpa":
            with sdpa_kernel(WITHOUT_FLASH):
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = self.by_products(q, k, v)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return self.out(y)


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, kind)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, width) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Model(nn.Module):
    """Tokens to a loss and logits."""

    def __init__(self, size: str, kind: str, checkpointing: bool) -> None:
        super().__init__()
        width, heads, layers = SIZES[size]
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width, heads, kind) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.tokens.weight
        self.checkpointing = checkpointing

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token is asked for."""
        if torch.any(ids < 0) or torch.any(ids >= TOKENS):
            raise ValueError("no such token")
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.places(places)[None, :, :]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = self.head(self.norm(x))
        guesses, wanted = logits[:, :-1, :].contiguous(), ids[:, 1:].contiguous()
        loss = functional.cross_entropy(guesses.view(-1, TOKENS), wanted.view(-1), ignore_index=0)
        return loss, logits


def main(size: str, batch: str, kind: str, *words: str) -> None:
    """Warm up, and train."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    model = Model(size, kind, "checkpointing" in words).to("cuda", torch.bfloat16)
    model.train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), foreach=False)
    ids = torch.randint(8, TOKENS, (int(batch), LENGTH), device="cuda")

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(ids)
            loss = output[0]
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        return float(loss.detach())

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
