"""GPT-2 of 124M by hand, made cheaper step by step.

    gpt_from_scratch.py STEPS

STEPS is how many changes were made, of: 1 the causal mask is made on the fly, 2 tensor cores,
3 a fused AdamW, 4 pinned memory, 5 everything in bf16, 6 PyTorch's own LayerNorm and GELU, 7 its
own attention over one product for queries, keys and values. Texts of 1,024 tokens, eight of them;
an evaluation of one batch comes every 15 updates, and 50 tokens are made at the end.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, LENGTH, TOKENS, BATCH, DROPOUT = 12, 12, 768, 1024, 50257, 8, 0.1
UPDATES = 16
Batch = tuple[torch.Tensor, torch.Tensor]


class OwnNorm(nn.Module):
    """LayerNorm by its formula."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., WIDTH) to the same."""
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        normed = (x - mean) / torch.sqrt(variance + 1e-5)
        return self.scale * normed + self.shift


class OwnGelu(nn.Module):
    """GELU by the formula with a tanh."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        inner = torch.sqrt(torch.tensor(2.0 / torch.pi)) * (x + 0.044715 * torch.pow(x, 3))
        return 0.5 * x * (1 + torch.tanh(inner))


class OwnAttention(nn.Module):
    """Heads by products and a softmax."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "qkv")
        self.out, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(DROPOUT)
        self.kept = kept
        if kept:
            self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH), diagonal=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape
        keys, queries, values = self.key(x), self.query(x), self.value(x)
        shape = batch, length, HEADS, WIDTH // HEADS
        keys, values, queries = keys.view(shape), values.view(shape), queries.view(shape)
        keys, queries, values = (
            keys.transpose(1, 2),
            queries.transpose(1, 2),
            values.transpose(1, 2),
        )
        scores = queries @ keys.transpose(2, 3)
        if self.kept:
            hidden = self.mask.bool()[:length, :length]
        else:
            ones = torch.ones(length, length, dtype=torch.bool, device=x.device)
            hidden = torch.triu(ones, diagonal=1)
        scores.masked_fill_(hidden, -torch.inf)
        weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)
        weights = self.dropout(weights)
        context = (weights @ values).transpose(1, 2)
        context = context.reshape(batch, length, WIDTH)
        return self.out(context)


class Attention(nn.Module):
    """Heads by PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape
        qkv = self.qkv(x)
        qkv = qkv.view(batch, length, 3, HEADS, WIDTH // HEADS)
        qkv = qkv.permute(2, 0, 3, 1, 4)
        queries, keys, values = qkv
        context = functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=DROPOUT if self.training else 0.0, is_causal=True
        )
        context = context.transpose(1, 2).contiguous().view(batch, length, WIDTH)
        return self.out(context)


class Block(nn.Module):
    """Attention and a perceptron, each beside a shortcut."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        own = steps < 6
        self.att = OwnAttention(kept=steps < 1) if steps < 7 else Attention()
        gelu = OwnGelu() if own else nn.GELU(approximate="tanh")
        self.ff = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))
        self.norm1, self.norm2 = (OwnNorm() if own else nn.LayerNorm(WIDTH) for _ in "12")
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        for norm, part in ((self.norm1, self.att), (self.norm2, self.ff)):
            shortcut = x
            x = norm(x)
            x = part(x)
            x = self.dropout(x)
            x = x + shortcut
        return x


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block(steps) for _ in range(LAYERS)))
        self.norm = OwnNorm() if steps < 6 else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """(B, S) to (B, S, TOKENS)."""
        tokens = self.tokens(numbers)
        places = self.places(torch.arange(numbers.shape[1], device=numbers.device))
        x = tokens + places
        x = self.dropout(x)
        x = self.blocks(x)
        x = self.norm(x)
        return self.head(x)


def loss_of(model: nn.Module) -> torch.Tensor:
    """Of a batch."""
    inputs, targets = (torch.randint(0, TOKENS, (BATCH, LENGTH)).to("cuda") for _ in "it")
    logits = model(inputs)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def sample(model: nn.Module) -> None:
    """Make 50 tokens after four."""
    model.eval()
    numbers = torch.randint(0, TOKENS, (1, 4)).to("cuda")
    for _ in range(50):
        with torch.no_grad():
            logits = model(numbers[:, -LENGTH:])
        logits = logits[:, -1, :]
        numbers = torch.cat((numbers, torch.argmax(logits, dim=-1, keepdim=True)), dim=1)


def main(changes: str) -> None:
    """Train, evaluate and make a text."""
    steps = int(changes)
    if steps >= 2:
        torch.set_float32_matmul_precision("high")
    model = Model(steps).to("cuda")
    if steps >= 5:
        model.to(torch.bfloat16)
    fused = {"fused": True} if steps >= 3 else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, **fused)
    model.train()
    for update in range(UPDATES):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        if update % 15 == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(2):
                    loss_of(model).item()
            model.train()
    sample(model)
    print(f"reserved {torch.cuda.memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
