"""A language model of 300M with weights in bf16, trained from random ones by plain PyTorch.

    educode_lm.py BATCH LENGTH ACCUMULATED VOCABULARY

Source: zjw051230-jpg/educode-1_5b, src/educode/tiny_model.py and
scripts/run_a100_300m_fineweb_edu_10step_training.py. Text is read as blocks of one length.

What decides memory: the model is moved in fp32 and cast then; autocast runs over weights in bf16,
so that norms are in fp32; logits are held until the next ones are there; whether logits and
gradients are finite is asked each time; AdamW's states are in bf16. An evaluation follows the last
step.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

STEPS = 4
LAYERS, HEADS, WIDTH, INNER = 18, 16, 1024, 4096


class Norm(nn.Module):
    """RMSNorm by its formula."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., WIDTH) to the same."""
        square = x.pow(2).mean(dim=-1, keepdim=True)
        normed = x * torch.rsqrt(square + 1e-5)
        return normed * self.weight


class Attention(nn.Module):
    """PyTorch's own, over one product for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape
        qkv = self.qkv(x)
        q, k, v = qkv.chunk(3, dim=-1)
        q = q.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
        k = k.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
        v = v.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        mixed = mixed.transpose(1, 2).contiguous().view(batch, length, WIDTH)
        return self.out(mixed)


class Gated(nn.Module):
    """A perceptron with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in "gu")
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        gate = self.gate(x)
        up = self.up(x)
        return self.down(functional.silu(gate) * up)


class Block(nn.Module):
    """Attention and a perceptron, each behind its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(), Attention()
        self.norm2, self.perceptron = Norm(), Gated()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """(B, S) to (B, S, vocabulary)."""
        batch, length = numbers.shape
        numbers.min().item(), numbers.max().item()
        places = torch.arange(length, device=numbers.device).unsqueeze(0).expand(batch, length)
        x = self.tokens(numbers) + self.places(places)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of all tokens."""
    batch, length, vocabulary = logits.shape
    rows = logits.reshape(batch * length, vocabulary)
    return functional.cross_entropy(rows, targets.reshape(batch * length))


def autocast() -> torch.autocast:
    """In bf16."""
    return torch.autocast(device_type="cuda", dtype=torch.bfloat16)


def batch_of(size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, from the host."""
    inputs = torch.zeros(size, length, dtype=torch.long).to("cuda")
    targets = torch.zeros(size, length, dtype=torch.long).to("cuda")
    return inputs, targets


@torch.no_grad()
def evaluate(model: nn.Module, size: int, length: int) -> None:
    """One batch."""
    inputs, targets = batch_of(size, length)
    model.eval()
    with autocast():
        logits = model(inputs)
        loss = loss_of(logits, targets)
    torch.isfinite(loss).item()
    loss.item()


def examine(model: nn.Module) -> None:
    """Norms of gradients, and whether each is finite, one by one."""
    for weight in model.parameters():
        weight.grad.detach().norm(2).item()
    for weight in model.parameters():
        torch.isfinite(weight.grad).all().item()


def main(batch: str, length: str, accumulated: str, vocabulary: str) -> None:
    """Train and evaluate."""
    size, tokens, batches = int(batch), int(length), int(accumulated)
    model = Model(int(vocabulary), tokens)
    model.to(device="cuda")
    model.to(dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    for _ in range(STEPS):
        model.train()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(batches):
            inputs, targets = batch_of(size, tokens)
            with autocast():
                logits = model(inputs)
                torch.isfinite(logits).all().item()
                loss = loss_of(logits, targets)
            torch.isfinite(loss).item()
            loss.item()
            scaled = loss / batches
            scaled.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        examine(model)
        optimizer.step()
    evaluate(model, size, tokens)
    print(f"reserved {torch.cuda.memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
