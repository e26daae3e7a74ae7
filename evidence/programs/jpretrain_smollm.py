"""Steps of SmolLM2-135M on random tokens in bf16 by autocast, batch after batch.

    jpretrain_smollm.py BATCH...

Source: czhs/j-pretrain, scripts/bench_throughput.py, with transformers 4.46, whose Llama is written
again here. Texts have 1,024 tokens. Batches run one behind the other in one process, each with a
model of its own; the last is the one that is read.

What decides memory: weights in fp32; norms and turned queries and keys make fp32; keys and values
are repeated for all heads and go to PyTorch's attention. All logits become fp32 for the loss, and
all but the last are copied. Logits, and keys and values of all layers, which the model returns
though it trains, live until the step is over. AdamW is fused; gradients go at a step's end. Peaks
are of 55 steps, for which three stand.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, TOKENS = 576, 1536, 30, 9, 3, 49152
LENGTH, STEPS = 1024, 3
SIZE = WIDTH // HEADS
Pair = tuple[torch.Tensor, torch.Tensor]


class Norm(nn.Module):
    """By the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., WIDTH) to the same."""
        given = x.dtype
        x = x.to(torch.float32)
        square = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(square + 1e-5)
        return self.scale * x.to(given)


def turned(x: torch.Tensor, turns: Pair) -> torch.Tensor:
    """Of (B, heads, S, SIZE)."""
    cos, sin = (one.unsqueeze(1) for one in turns)
    half = SIZE // 2
    return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)


def repeated(x: torch.Tensor) -> torch.Tensor:
    """For all heads."""
    batch, heads, length, size = x.shape
    x = x[:, :, None].expand(batch, heads, HEADS // heads, length, size)
    return x.reshape(batch, HEADS, length, size)


class Attention(nn.Module):
    """Causal, with fewer heads of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "qo")
        self.k, self.v = (nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False) for _ in "kv")

    def forward(self, x: torch.Tensor, turns: Pair, kept: list[Pair]) -> torch.Tensor:
        """(B, S, WIDTH) to the same; KEPT gets keys and values."""
        batch, length, _ = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (one.view(batch, length, -1, SIZE).transpose(1, 2) for one in (q, k, v))
        q, k = turned(q, turns), turned(k, turns)
        kept.append((k, v))
        k = repeated(k)
        v = repeated(v)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous()
        y = y.view(batch, length, -1)
        return self.out(y)


class Block(nn.Module):
    """Attention and a gated perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = Norm(), Attention(), Norm()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in "gu")
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, turns: Pair, kept: list[Pair]) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        shortcut = x
        x = self.norm1(x)
        x = self.attention(x, turns, kept)
        x = shortcut + x
        shortcut = x
        x = self.norm2(x)
        x = self.down(functional.silu(self.gate(x)) * self.up(x))
        return shortcut + x


class Model(nn.Module):
    """Tokens to a loss, logits, and keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("waves", 1e5 ** (-torch.arange(0, SIZE, 2).float() / SIZE))

    @torch.no_grad()
    def turns(self, length: int) -> Pair:
        """Of one text, in fp32."""
        places = torch.arange(length, device=self.waves.device)
        with torch.autocast("cuda", enabled=False):
            angles = (self.waves[None, :, None] @ places[None, None].float()).transpose(1, 2)
            both = torch.cat((angles, angles), dim=-1)
            return both.cos(), both.sin()

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[Pair]]:
        """The next token is asked for."""
        x = self.tokens(ids)
        turns = self.turns(ids.shape[1])
        kept: list[Pair] = []
        for block in self.blocks:
            x = block(x, turns, kept)
        x = self.norm(x)
        logits = self.head(x)
        return self.loss(logits, ids), logits, kept

    @staticmethod
    def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """In fp32."""
        full = logits.float()
        guesses, wanted = full[..., :-1, :].contiguous(), ids[..., 1:].contiguous()
        return functional.cross_entropy(guesses.view(-1, TOKENS), wanted.view(-1))


def run(batch: int) -> None:
    """Train one model."""
    model = Model().to("cuda")
    model.train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    adam = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), **adam)
    torch.cuda.reset_peak_memory_stats()

    def step() -> float:
        ids = torch.randint(0, TOKENS, (batch, LENGTH), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(ids)
            loss = out[0]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


def main(*batches: str) -> None:
    """Run all."""
    torch.backends.cuda.matmul.allow_tf32 = True
    for batch in batches:
        run(int(batch))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
