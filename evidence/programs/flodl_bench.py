"""Ten small models that flodl is held against, each trained by PyTorch on a set kept on the GPU.

    flodl_bench.py MODEL [planned] [tried]

Source: flodl-labs/flodl, benchmarks/python (harness.py and one file a model). All run in one
process there; each gives the cache back, and sets peaks back, behind a first pass that is not
read, so that each stands for itself here.

What decides memory: fifty batches on the GPU; Adam of PyTorch in fp32; gradients are freed behind
the forward pass; a batch's output lives until the next one's. cuDNN is asked to try its engines
(not for the two recurrent models); the trial itself lies in the pass that is not read, and which
it keeps is not known: ``planned`` engines, as without a trial, or all that it ``tried``.
"""

import itertools
import sys

import torch
from torch import nn
from torch.nn import functional

BATCHES, STEPS = 50, 6
WORDS = 8192


def then(dim: int, inner: int | None = None) -> nn.Sequential:
    """A linear layer, GELU and a norm."""
    inner = inner or dim
    return nn.Sequential(nn.Linear(dim, inner), nn.GELU(), nn.LayerNorm(inner))


def mlp() -> nn.Module:
    """Five linear layers."""
    layers = [*then(1024, 2048), *then(2048), *then(2048), *then(2048)]
    return nn.Sequential(*layers, nn.Linear(2048, 1024))


def convnet() -> nn.Module:
    """Five convolutions, four of them halved behind."""
    layers: list[nn.Module] = []
    channels = [3, 64, 128, 256, 512, 512]
    for before, after in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    layers[-1] = nn.AdaptiveAvgPool2d((1, 1))
    return nn.Sequential(*layers, nn.Flatten(1), nn.Linear(512, 100))


def conv_autoenc() -> nn.Module:
    """Four convolutions down and four up."""
    layers: list[nn.Module] = []
    channels = [3, 64, 128, 256, 512]
    for before, after in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    channels = [512, 256, 128, 64]
    for before, after in itertools.pairwise(channels):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


class Layer(nn.Module):
    """Attention and two linear layers, each with a norm behind."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(512, 8, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(512), nn.LayerNorm(512)
        self.ff1, self.ff2 = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, 512) to the same."""
        attended, _ = self.mha(x, x, x)
        x = self.norm1(x + attended)
        ff = self.ff2(functional.gelu(self.ff1(x)))
        return self.norm2(x + ff)


class Transformer(nn.Module):
    """Four layers over 128 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 512)
        self.places = nn.Parameter(torch.randn(1, 128, 512))
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.output = nn.Linear(512, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens to logits."""
        x = self.embedding(x) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


class Gru(nn.Module):
    """One cell, fifty times."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.output = nn.GRUCell(256, 512), nn.Linear(512, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What comes last."""
        h = torch.zeros(x.size(0), 512, device=x.device)
        for at in range(50):
            h = self.gru(x[:, at, :], h)
        return self.output(h)


class Lstm(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.output = nn.LSTM(256, 512, 2, batch_first=True), nn.Linear(512, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What comes last."""
        output, _ = self.lstm(x)
        return self.output(output[:, -1, :])


class Added(nn.Module):
    """Blocks whose result is added to what they were given, each of its own or one many times."""

    def __init__(self, dim: int, first: nn.Module, blocks: int, times: int) -> None:
        super().__init__()
        self.first, self.times = first, times
        self.blocks = nn.ModuleList(then(dim) for _ in range(blocks))
        self.last = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, dim) to the same."""
        x = self.first(x)
        for _ in range(self.times):
            for block in self.blocks:
                x = x + block(x)
        return self.last(x)


class Gated(nn.Module):
    """Eight experts, all of which run."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Sequential(nn.Linear(512, 512), nn.GELU())
        self.router = nn.Linear(512, 8)
        self.experts = nn.ModuleList(then(512) for _ in range(8))
        self.output = nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 512) to the same."""
        x = self.entry(x)
        weights = functional.softmax(self.router(x), dim=-1)
        found = torch.stack([expert(x) for expert in self.experts], dim=1)
        x = (weights.unsqueeze(-1) * found).sum(dim=1)
        return self.output(x)


MODELS = {
    "mlp": (mlp, (256, 1024), (256, 1024)),
    "convnet": (convnet, (128, 3, 64, 64), (128, 100)),
    "conv_autoenc": (conv_autoenc, (64, 3, 64, 64), None),
    "transformer": (Transformer, (32, 128), (32, 128)),
    "gru_seq": (Gru, (128, 50, 256), (128, 256)),
    "lstm_seq": (Lstm, (128, 50, 256), (128, 256)),
    "residual_tower": (lambda: Added(1024, nn.Linear(1024, 1024), 12, 1), (256, 1024), (256, 1024)),
    "gated_routing": (Gated, (256, 512), (256, 512)),
    "iterative_refine": (lambda: Added(1024, then(1024), 1, 8), (256, 1024), (256, 1024)),
    "feedback_fixed": (lambda: Added(512, then(512), 1, 10), (128, 512), (128, 512)),
}
"""What is built, and the sizes of a batch; ``None``: it is its own target."""


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One of the set."""
    _, given, wanted = MODELS[name]
    if name == "transformer":
        x = torch.randint(0, WORDS, given, device="cuda")
        return x, torch.randint(0, WORDS, given, device="cuda")
    x = torch.randn(given, device="cuda")
    return x, x if wanted is None else torch.randn(wanted, device="cuda")


def lost(name: str, pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What is minimised."""
    if name == "transformer":
        return functional.cross_entropy(pred.reshape(-1, WORDS), y.reshape(-1))
    return functional.mse_loss(pred, y)


def main(name: str, engines: str = "planned") -> None:
    """Train."""
    torch.backends.cudnn.benchmark = engines == "tried"
    model = MODELS[name][0]().to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept = [batch(name) for _ in range(BATCHES)]
    for x, y in kept[:STEPS]:
        pred = model(x)
        loss = lost(name, pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
