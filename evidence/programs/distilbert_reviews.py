"""DistilBERT that is finetuned on film reviews, under Lightning's Fabric in six precisions.

    distilbert_reviews.py PRECISION

PRECISION is what Fabric was told: 64-true, 32-true, 16-mixed, bf16-mixed, 16-true or bf16-true.
Source: rasbt/LLM-finetuning-scripts, conventional/distilbert-movie-review/
mixed-precision-experiment. Twelve reviews make a batch; all are padded to the longest of them all,
which is cut to 512 tokens.

What decides memory: the model is transformers 4.28's (modeling_distilbert.py), whose attention is
written out and takes a mask; outputs are held until the next ones are there, and gradients of the
step before are freed behind the forward pass. Fabric's part is written out: it upcasts what the
model makes, and its scaler stands behind 16-mixed alone. A validation and a test follow, of which
two batches each stand for all.
"""

import contextlib
import math
import sys

import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, INNER, LENGTH, TOKENS = 6, 12, 768, 3072, 512, 30522
BATCH, STEPS = 12, 3
TYPES = {
    # Of the weights, of autocast.
    "64-true": (torch.float64, None),
    "32-true": (torch.float32, None),
    "16-mixed": (torch.float32, torch.float16),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "16-true": (torch.float16, None),
    "bf16-true": (torch.bfloat16, None),
}


class Embeddings(nn.Module):
    """Of words and places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH, eps=1e-12), nn.Dropout(0.1)
        self.register_buffer("numbers", torch.arange(LENGTH).expand((1, -1)), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, S) to (B, S, WIDTH)."""
        places = self.numbers[:, : tokens.shape[1]]
        words = self.words(tokens)
        here = self.places(places)
        x = words + here
        x = self.norm(x)
        return self.dropout(x)


class Attention(nn.Module):
    """Heads by products and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, -1, HEADS, WIDTH // HEADS).transpose(1, 2)

        q = heads(self.q(x))
        k = heads(self.k(x))
        v = heads(self.v(x))
        q = q / math.sqrt(WIDTH // HEADS)
        scores = torch.matmul(q, k.transpose(2, 3))
        mask = (mask == 0).view(batch, 1, 1, length).expand_as(scores)
        scores = scores.masked_fill(mask, torch.tensor(torch.finfo(scores.dtype).min))
        weights = functional.softmax(scores, dim=-1)
        weights = self.dropout(weights)
        context = torch.matmul(weights, v)
        context = context.transpose(1, 2).contiguous().view(batch, -1, WIDTH)
        return self.out(context)


class Perceptron(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.lin1, self.lin2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        x = self.lin1(x)
        x = functional.gelu(x)
        x = self.lin2(x)
        return self.dropout(x)


class Block(nn.Module):
    """Attention and a perceptron, a norm behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.perceptron = Perceptron()
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        attended = self.attention(x, mask)
        attended = self.norm1(attended + x)
        given = self.perceptron(attended)
        return self.norm2(given + attended)


class Classifier(nn.Module):
    """Two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.before, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.dropout = nn.Dropout(0.2)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and logits."""
        x = self.embeddings(tokens)
        for block in self.blocks:
            x = block(x, mask)
        pooled = x[:, 0]
        pooled = self.before(pooled)
        pooled = functional.relu(pooled)
        pooled = self.dropout(pooled)
        logits = self.head(pooled)
        return functional.cross_entropy(logits.view(-1, 2), labels.view(-1)), logits


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, their mask, labels."""
    tokens, mask = (torch.ones(BATCH, LENGTH, dtype=torch.long).to("cuda") for _ in "tm")
    return tokens, mask, torch.zeros(BATCH, dtype=torch.long).to("cuda")


def main(precision: str) -> None:
    """Train, validate and test."""
    kind, cast = TYPES[precision]
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5)
    model.to(kind).to("cuda")
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "16-mixed")
    right = torch.zeros(2, dtype=torch.long, device="cuda")

    def outputs_of(given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", cast) if cast else contextlib.nullcontext():
            made = model(*given)
        return tuple(one.to(torch.float32) for one in made)

    for _ in range(STEPS):
        model.train()
        given = batch()
        outputs = outputs_of(given)
        optimizer.zero_grad()
        scaler.scale(outputs[0]).backward()
        scaler.step(optimizer)
        scaler.update()
        model.eval()
        with torch.no_grad():
            right += torch.bincount(outputs[1].argmax(1), minlength=2)
    with torch.no_grad():
        for _ in range(4):
            given = batch()
            outputs = outputs_of(given)
            right += torch.bincount(outputs[1].argmax(1), minlength=2)
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
