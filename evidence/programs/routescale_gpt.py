"""Updates of RouteScale's GPT, nanoGPT made smaller, dense or with experts in one block.

    routescale_gpt.py fit BATCH
    routescale_gpt.py dense|experts

Source: Florayuuuu718/RouteScale, train.py, model.py and moe.py. ``fit`` is its trial of batches,
which evaluates first, and reads the peak of all that came behind loading; ``dense`` and ``experts``
are its benchmarks of 8 texts, which read 100 updates behind 20 that warm up.

What decides memory: bf16 by autocast, four texts' batches an update, AdamW of PyTorch, fused; the
next batch comes from pinned memory before the backward pass; logits and loss of a batch live until
those of the next are there, in ``fit`` those of the next update. With experts, tokens of an expert
are gathered, up to 1.25 times their even share, and written back one expert after the other. Three
updates stand for those that warm up, and four for the rest; of an evaluation's twenty batches, two
are made.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, LENGTH, TOKENS = 8, 8, 512, 512, 50257
ACCUMULATED, EXPERTS, WITH_EXPERTS, FACTOR = 4, 4, 4, 1.25
"""WITH_EXPERTS: which block has them."""
WARM, UPDATES, EVALUATED = 3, 4, 2
Batch = tuple[torch.Tensor, torch.Tensor]
Parts = tuple[nn.Module, torch.optim.Optimizer]


class Perceptron(nn.Module):
    """Four times as wide inside."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., WIDTH) to the same."""
        x = self.wide(x)
        x = functional.gelu(x)
        return self.narrow(x)


class Experts(nn.Module):
    """One perceptron of several for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Perceptron() for _ in range(EXPERTS))
        self.kept: tuple[torch.Tensor, ...] = ()
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        flat = x.reshape(-1, WIDTH)
        likely = functional.softmax(self.router(flat), dim=-1, dtype=torch.float32)
        weights, chosen = likely.max(dim=-1)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        room = math.ceil(FACTOR * len(flat) / EXPERTS)
        over = torch.clamp(counts - room, min=0)
        dropped = torch.zeros(len(flat), dtype=torch.bool, device=x.device)
        done, out = [], None
        for number, expert in enumerate(self.experts):
            places = torch.nonzero(chosen == number).squeeze(-1)
            dropped[places[room:]] = True
            places = places[:room]
            done.append(places.numel())
            if places.numel() == 0:
                continue
            gathered = flat.index_select(0, places)
            answer = expert(gathered)
            scale = weights.index_select(0, places).to(answer.dtype)
            weighted = answer * scale.unsqueeze(-1)
            if out is None:
                out = torch.zeros(flat.shape, dtype=answer.dtype, device=x.device)
            out = torch.index_copy(out, 0, places, weighted)
        shares = functional.one_hot(chosen, num_classes=EXPERTS).to(likely.dtype).mean(dim=0)
        self.balance = EXPERTS * torch.sum(shares.detach() * likely.mean(dim=0))
        processed = torch.tensor(done, dtype=counts.dtype, device=x.device)
        self.kept = chosen, weights, counts, processed, over, dropped, likely.sum(dim=0)
        return out.reshape(x.shape)


class Attention(nn.Module):
    """Causal, by PyTorch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).split(WIDTH, dim=2)
        shape = batch, length, HEADS, WIDTH // HEADS
        k, q, v = (one.view(shape).transpose(1, 2) for one in (k, q, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, WIDTH)
        return self.out(y)


class Block(nn.Module):
    """Attention, and one perceptron or several."""

    def __init__(self, several: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, bias=False) for _ in "12")
        self.attention = Attention()
        self.perceptron = Experts() if several else Perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, WIDTH) to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class Model(nn.Module):
    """Tokens to logits and a loss."""

    def __init__(self, experts: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        several = [experts and number == WITH_EXPERTS for number in range(LAYERS)]
        self.blocks = nn.ModuleList(Block(one) for one in several)
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.tokens.weight = self.head.weight
        self.experts, self.last = experts, torch.zeros(())

    def forward(self, ids: torch.Tensor, wanted: torch.Tensor) -> Batch:
        """The loss, with what routing costs."""
        places = torch.arange(0, ids.shape[1], dtype=torch.long, device=ids.device)
        tokens, where = self.tokens(ids), self.places(places)
        x = tokens + where
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits = self.head(x)
        loss = functional.cross_entropy(logits.view(-1, TOKENS), wanted.view(-1), ignore_index=-1)
        self.last = loss.detach()
        if self.experts:
            loss = loss + 0.01 * self.blocks[WITH_EXPERTS].perceptron.balance
        return logits, loss

    def balance(self) -> torch.Tensor:
        """What routing cost the last time."""
        if self.experts:
            return self.blocks[WITH_EXPERTS].perceptron.balance.detach()
        return torch.zeros_like(self.last)


def batch_of(size: int) -> Batch:
    """From the host."""
    x, y = (torch.randint(0, TOKENS, (size, LENGTH)).pin_memory() for _ in "xy")
    return x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)


def mixed() -> torch.autocast:
    """Bf16."""
    return torch.autocast("cuda", dtype=torch.bfloat16)


@torch.no_grad()
def evaluate(model: nn.Module, size: int) -> None:
    """Of two sets."""
    model.eval()
    for _ in range(2 * EVALUATED):
        x, y = batch_of(size)
        with mixed():
            _logits, loss = model(x, y)
        loss.item()
    model.train()


def update(parts: Parts, x: torch.Tensor, y: torch.Tensor, held: dict[str, torch.Tensor]) -> Batch:
    """One, after which the next batch is there; HELD keeps the last logits and loss."""
    model, optimizer = parts
    for _ in range(ACCUMULATED):
        with mixed():
            held["logits"], held["loss"] = model(x, y)
            held["loss"] = held["loss"] / ACCUMULATED
        x, y = batch_of(len(x))
        held["loss"].backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return x, y


def fit(parts: Parts, size: int) -> None:
    """Evaluate, and train; the last logits are held all the time."""
    x, y = batch_of(size)
    evaluate(parts[0], size)
    held: dict[str, torch.Tensor] = {}
    for _ in range(UPDATES):
        x, y = update(parts, x, y, held)
        held["loss"].item()


def benchmark(parts: Parts, size: int) -> None:
    """Warm up, and train; losses are held until the end."""
    model = parts[0]
    x, y = batch_of(size)
    losses = []
    for number in range(WARM + UPDATES):
        if number == WARM:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        held: dict[str, torch.Tensor] = {}
        x, y = update(parts, x, y, held)
        loss = held.pop("loss")
        held.clear()
        if number >= WARM:
            losses += [loss.detach() * ACCUMULATED, model.last, model.balance()]


def main(what: str, batch: str = "8") -> None:
    """Train."""
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model(what == "experts")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    model.to("cuda")
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.dim() >= 2], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    (fit if what == "fit" else benchmark)((model, optimizer), int(batch))
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
