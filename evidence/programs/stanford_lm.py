"""The language model of Stanford's course CS336, trained as four of its readers measured it.

    stanford_lm.py PROGRAM MODE SIZE BATCH LENGTH TYPE [GROUP]

Each wrote a program of their own (OpenMOSS/SummerQuest-2026, assignments A2-K and A2-P) around the
course's model and, some of them, its optimizer and loss (stanford-cs336/assignment2-systems,
cs336-basics). PROGRAM is whose: ``li``, ``wu``, ``luan`` or ``yao``; each has a loss, an optimizer
and a number of steps. MODE is ``train`` or ``forward``, TYPE ``fp32`` or ``bf16`` (autocast over
weights in fp32). GROUP: so many blocks are recomputed together; 0, none is.

What decides memory: attention is written out, with a mask and a softmax of four operations; norms
are in fp32; the course's optimizer goes from parameter to parameter and makes new states each time;
a step's logits die with it; einops' products and views are those of torch.einsum, reshape and
permute, which it calls.
"""

import contextlib
import math
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

TOKENS = 10_000
SIZES = {
    # Width, inner width, blocks, heads.
    "tiny": (64, 128, 2, 2),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (2560, 10240, 32, 32),
}
STEPS = {"li": 8, "wu": 8, "luan": 6, "yao": 3}
"""With those that warm up."""


class Linear(nn.Module):
    """Without a bias."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inner) to (..., outer)."""
        return torch.einsum("...a,ba->...b", x, self.weight)


class Embedding(nn.Module):
    """By an index."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(TOKENS, width))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """(...) to (..., width)."""
        return self.weight[numbers, :]


class Norm(nn.Module):
    """RMSNorm in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to the same."""
        kind = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(kind)


class Rotary(nn.Module):
    """Rotary embeddings of pairs that lie beside each other."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        powers = torch.tensor(10_000.0) ** -(torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(length).float(), powers)
        table = torch.stack((torch.cos(angles), torch.sin(angles)))
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, heads, S, width) to the same."""
        pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).permute(4, 0, 1, 2, 3)
        first, second = pairs.unbind(0)
        cos, sin = self.table[:, : x.shape[-2], :].unbind(0)
        one = cos * first - sin * second
        two = sin * first + cos * second
        return torch.concat((one, two), dim=-1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Over the last dimension, by its formula."""
    moved = x - torch.max(x, dim=-1, keepdim=True)[0]
    exponents = torch.exp(moved)
    return exponents / torch.sum(exponents, dim=-1, keepdim=True)


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attention written out."""
    scores = torch.einsum("...ab,...cb->...ac", queries, keys) / math.sqrt(keys.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...ab,...bc->...ac", weights, values)


class Attention(nn.Module):
    """Causal, with rotary embeddings."""

    def __init__(self, width: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (Linear(width, width) for _ in range(4))
        self.rotary = rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, width) to the same."""
        batch, length, width = x.shape
        queries = self.q(x)
        keys = self.k(x)
        values = self.v(x)
        shape = batch, length, self.heads, width // self.heads
        queries, keys, values = (
            one.reshape(shape).permute(0, 2, 1, 3) for one in (queries, keys, values)
        )
        queries = self.rotary(queries)
        keys = self.rotary(keys)
        places = torch.arange(length, device=x.device)
        down = places.reshape(length, 1)
        across = places.reshape(1, length)
        mask = down >= across
        mask = mask[None, ...]
        context = attend(queries, keys, values, mask)
        context = context.permute(0, 2, 1, 3).reshape(batch, length, width).contiguous()
        return self.out(context)


class Gated(nn.Module):
    """A perceptron with a gate."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = Linear(width, inner)
        self.w2 = Linear(inner, width)
        self.w3 = Linear(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to the same."""
        return self.w2(silu(self.w1(x)) * self.w3(x))


def silu(x: torch.Tensor) -> torch.Tensor:
    """By its formula."""
    return x * torch.sigmoid(x)


class Block(nn.Module):
    """Attention and a perceptron, each behind its norm."""

    def __init__(self, width: int, inner: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.attention = Attention(width, heads, rotary)
        self.perceptron = Gated(width, inner)
        self.norm1, self.norm2 = Norm(width), Norm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, width) to the same."""
        attended = self.attention(self.norm1(x))
        middle = x + attended
        given = self.perceptron(self.norm2(middle))
        return middle + given


class Model(nn.Module):
    """Tokens to logits, with groups of blocks that are recomputed."""

    def __init__(self, size: str, length: int, group: int) -> None:
        super().__init__()
        width, inner, blocks, heads = SIZES[size]
        self.group = group
        self.tokens = Embedding(width)
        rotary = Rotary(length, width // heads)
        self.rotary = rotary
        self.blocks = nn.ModuleList(Block(width, inner, heads, rotary) for _ in range(blocks))
        self.norm = Norm(width)
        self.head = Linear(width, TOKENS)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """(B, S) to (B, S, tokens)."""
        embedded = self.tokens(numbers)
        x = embedded
        if not self.group:
            for block in self.blocks:
                x = block(x)
        for start in range(0, len(self.blocks), self.group) if self.group else ():

            def run(x: torch.Tensor, start: int = start) -> torch.Tensor:
                for block in self.blocks[start : start + self.group]:
                    x = block(x)
                return x

            x = checkpoint(run, x, use_reentrant=False)
        return self.head(self.norm(x))


class OwnAdamW(torch.optim.Optimizer):
    """The course's: parameter by parameter, with new states each time."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "decay": 0.01})

    def step(self) -> None:
        """One update."""
        for group in self.param_groups:
            rate, (one, two) = group["lr"], group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                gradient = weight.grad.data
                state = self.state[weight]
                count = state.get("count", 1)
                scaled = rate * (math.sqrt(1 - two**count) / (1 - one**count))
                weight.data -= rate * group["decay"] * weight.data
                # Zeros are made each time, whether or not they are taken.
                mean_before = state.get("mean", torch.zeros_like(gradient))
                square_before = state.get("square", torch.zeros_like(gradient))
                mean = one * mean_before + ((1 - one) * gradient)
                square = two * square_before + ((1 - two) * torch.square(gradient))
                weight.data -= scaled * mean / (torch.sqrt(square) + 1e-8)
                state["mean"], state["square"], state["count"] = mean, square, count + 1


def clip(parameters: object, most: float) -> None:
    """The course's clipping."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    norm = torch.tensor(0.0, device=gradients[0].device)
    for one in gradients:
        norm += (one**2).sum()
    norm = torch.sqrt(norm)
    scale = min(1, most / (norm + 1e-6))
    for one in gradients:
        one *= scale


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """The course's."""
    most = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - most
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def own_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The course's cross entropy."""
    negative = -log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


def autocast(kind: str) -> contextlib.AbstractContextManager:
    """Over weights in fp32."""
    if kind == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device_type="cuda", dtype=torch.bfloat16)


def made(
    program: str, model: nn.Module, kind: str, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and the loss, in or behind autocast, of logits as they are or in fp32."""
    with autocast(kind):
        logits = model(tokens)
        if program == "li":
            rows = logits.reshape(-1, logits.shape[-1])
            return logits, functional.cross_entropy(rows, targets.reshape(-1))
        if program == "luan":
            return logits, own_loss(logits, targets)
        if program == "yao":
            rows = logits.flatten(0, 1).float()
            return logits, functional.cross_entropy(rows, targets.flatten())
    rows = logits.float().reshape(-1, TOKENS)
    return logits, functional.cross_entropy(rows, targets.reshape(-1))


def step(
    program: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    kind: str,
    tokens: torch.Tensor,
    targets: torch.Tensor,
) -> None:
    """Train once, or run forward where there is no optimizer; logits live until it ends."""
    if optimizer is None:
        with torch.no_grad(), autocast(kind):
            model(tokens)
        return
    optimizer.zero_grad(set_to_none=True)
    logits, loss = made(program, model, kind, tokens, targets)
    loss.backward()
    if program == "luan":
        clip(model.parameters(), 1.0)
    optimizer.step()
    loss.detach().item()
    del logits


def main(
    program: str, mode: str, size: str, batch: str, length: str, kind: str, group: str = "0"
) -> None:
    """Run all steps."""
    model = Model(size, int(length), int(group)).to("cuda")
    own = program in ("li", "luan")
    optimizer = None
    if mode == "train":
        parameters = model.parameters()
        optimizer = OwnAdamW(parameters) if own else torch.optim.AdamW(parameters, lr=1e-4)
    tokens, targets = (
        torch.randint(0, TOKENS, (int(batch), int(length)), device="cuda") for _ in "tt"
    )
    for number in range(STEPS[program]):
        if program == "yao" and number == STEPS[program] - 1:
            torch.cuda.empty_cache()
        step(program, model, optimizer, kind, tokens, targets)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated} reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
