"""Small networks of four kinds, each a step or two of one process, as ksolver's VRAM lab runs them.

    ksolver_probe.py KIND PRECISION OPTIMIZER BATCH [size=N] [wide=N] [deep=N] [heads=N] [kept=no]

``KIND``: mlp, cnn, transformer, or the name of a model of torchvision. ``size``: words of a sample,
or the side of its picture. Source: syslenslabs/ksolver, vram-model-lab/scripts/run_k8s_probe.py,
its WORKLOAD.

What decides memory: the model is made on the host and goes to the GPU in its precision; weights,
gradients and states are of that precision too; a batch is drawn on the GPU, pictures in fp32, and
lives until the next takes its name, as do what the model returned and its loss; gradients are freed
before each step. ``kept=no``: blocks of the transformer are checkpointed.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

KINDS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WORDS, CLASSES = 32000, 1000
STEPS = 3
"""Four of torchvision's models, whose last is as the one before."""


def dense(size: int, wide: int, deep: int) -> nn.Module:
    """Linear layers with GELU between them."""
    layers: list[nn.Module] = [nn.Linear(size, wide), nn.GELU()]
    for _ in range(max(0, deep - 2)):
        layers += [nn.Linear(wide, wide), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(wide, size))


class Convolutions(nn.Module):
    """Of three by three, all at the picture's own size."""

    def __init__(self, wide: int, deep: int) -> None:
        super().__init__()
        channels = max(16, wide // 8)
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        for _ in range(max(1, deep - 1)):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures to classes."""
        found = self.features(pictures)
        found = found.mean(dim=(2, 3))
        return self.head(found)


class Encoder(nn.Module):
    """PyTorch's own encoder, which drops nothing."""

    def __init__(self, wide: int, deep: int, heads: int, *, kept: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            wide, heads, wide * 4, dropout=0.0, batch_first=True, activation="gelu"
        )
        self.embed = nn.Embedding(WORDS, wide)
        self.encoder = nn.TransformerEncoder(layer, num_layers=deep)
        self.head = nn.Linear(wide, WORDS)
        self.kept = kept

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens to logits."""
        found = self.embed(tokens)
        if self.kept:
            found = self.encoder(found, mask=None)
        else:
            for layer in self.encoder.layers:
                found = checkpoint(layer, found, use_reentrant=False)
        return self.head(found)


def named(name: str) -> nn.Module:
    """One of torchvision's models, with no weights of its own."""
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def build(kind: str, given: dict[str, str]) -> nn.Module:
    """The model, on the host."""
    wide, deep = int(given.get("wide", 0)), int(given.get("deep", 0))
    if kind == "mlp":
        return dense(int(given["size"]), wide, deep)
    if kind == "cnn":
        return Convolutions(wide, deep)
    if kind == "transformer":
        return Encoder(wide, deep, int(given["heads"]), kept=given.get("kept") != "no")
    return named(kind)


def drawn(kind: str, batch: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch, and what it should give."""
    if kind == "mlp":
        shape = (batch, size)
        return torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
    if kind == "transformer":
        shape = (batch, size)
        first = torch.randint(0, WORDS, shape, device="cuda")
        return first, torch.randint(0, WORDS, shape, device="cuda")
    pictures = torch.randn(batch, 3, size, size, device="cuda")
    return pictures, torch.randint(0, CLASSES, (batch,), device="cuda")


def lost(kind: str, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What is minimised."""
    if kind == "mlp":
        return functional.mse_loss(out.float(), y.float())
    if kind == "transformer":
        return functional.cross_entropy(out.reshape(-1, WORDS), y.reshape(-1))
    return functional.cross_entropy(out, y)


def main(kind: str, precision: str, optimizer: str, batch: str, *words: str) -> None:
    """Train."""
    given = dict(word.split("=") for word in words)
    size = int(given.get("size", 224))
    model = build(kind, given).to(device="cuda", dtype=KINDS[precision])
    if optimizer == "sgd":
        updates = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        updates = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        updates.zero_grad(set_to_none=True)
        x, y = drawn(kind, int(batch), size)
        if x.is_floating_point():
            x = x.to(KINDS[precision])
        out = model(x)
        loss = lost(kind, out, y)
        (loss / 1).backward()
        updates.step()
        torch.cuda.synchronize()
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
