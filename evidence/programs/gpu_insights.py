"""Three of the networks whose memory GPU-Insights reads by NVML, trained over made-up pictures.

    gpu_insights.py MODEL PRECISION BATCH [little|much]

Source: xiaoran007/GPU-Insights, calibrate_memory.py and benchmark/models. ``MODEL``: resnet50 (of
pictures of 32 x 32, its first convolution 3 x 3, no pooling behind it), unet (256 x 256, 21
classes, widths 64 to 1,024) or vit (base, patches of 16, torch's own MultiheadAttention).
``PRECISION``: fp32, fp16 (by autocast, with a scaler) or bf16 (by autocast).

What decides memory: fifteen batches, or 256 pictures if those are more, lie on the GPU from the
start; plain SGD; channels last but for vit; gradients are dropped before each step; cuDNN tries
no engines.

What NVML reads there is of the whole card, with what the driver keeps for itself: between 423 and
634 MiB of an A100 of 40,960 MiB, by the totals that PyTorch prints of such cards. And all networks
and precisions ran in one process, one behind the other (cnn, resnet50, vit, unet; fp32, fp16,
bf16), each of which gives its memory back but leaves its kernels loaded. ``little``: the least
that the driver keeps, and nothing of those before; ``much``: the most, and 256 MiB of kernels;
neither: what lies between the driver's two. It is held as a tensor here.
"""

import sys

import torch
from torch import nn

SIDES = {"resnet50": 32, "unet": 256, "vit": 224}
CLASSES = {"resnet50": 10, "unet": 21, "vit": 10}
STEPS = 5
KEPT = {"": (423 + 634) // 2, "little": 423, "much": 634 + 256}
"""MiB that the card's figure has beyond this process."""


class Bottleneck(nn.Module):
    """Three convolutions around which the input goes."""

    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__()
        after = 4 * inner
        self.first = nn.Conv2d(before, inner, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(inner)
        self.second = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(inner)
        self.third = nn.Conv2d(inner, after, 1, bias=False)
        self.third_norm = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.around = nn.Identity()
        if stride != 1 or before != after:
            projection = nn.Conv2d(before, after, 1, stride, bias=False)
            self.around = nn.Sequential(projection, nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels to four times the inner ones."""
        out = self.relu(self.first_norm(self.first(x)))
        out = self.relu(self.second_norm(self.second(out)))
        out = self.third_norm(self.third(out))
        out += self.around(x)
        return self.relu(out)


def resnet50() -> nn.Module:
    """Stages of 3, 4, 6 and 3 blocks behind a convolution of 3 x 3."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False)]
    layers += [nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for at in range(blocks):
            inner = 64 << stage
            layers.append(Bottleneck(before, inner, 2 if stage and not at else 1))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(before, 10))


def twice(before: int, after: int) -> nn.Sequential:
    """Two convolutions, each with its norm."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers.append(nn.Conv2d(channels, after, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """Four levels down and up."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(
            twice(before, after) for before, after in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        up = widths[:0:-1]
        self.wider = nn.ModuleList(nn.ConvTranspose2d(deep, deep // 2, 2, 2) for deep in up)
        self.up = nn.ModuleList(twice(deep, deep // 2) for deep in up)
        self.head = nn.Conv2d(64, CLASSES["unet"], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures to classes of each pixel."""
        skips = []
        for at, part in enumerate(self.down):
            x = part(self.pool(x) if at else x)
            skips.append(x)
        skips.pop()
        for wider, part in zip(self.wider, self.up, strict=True):
            # By nothing, as sizes are powers of two; that makes a copy all the same.
            x = nn.functional.pad(wider(x), [0, 0, 0, 0])
            x = part(torch.cat([skips.pop(), x], dim=1))
        return self.head(x)


class Block(nn.Module):
    """Attention and two linear layers, with norms before."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.first = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, dropout=0.0, batch_first=True)
        self.second = nn.LayerNorm(dim)
        inner: list[nn.Module] = [nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.0)]
        self.mlp = nn.Sequential(*inner, nn.Linear(4 * dim, dim), nn.Dropout(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens to tokens."""
        h = self.first(x)
        h, _ = self.attention(h, h, h, need_weights=False)
        x = x + h
        return x + self.mlp(self.second(x))


class Vit(nn.Module):
    """ViT-B/16 with a class token."""

    def __init__(self, dim: int = 768) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.places = nn.Parameter(torch.zeros(1, 197, dim))
        self.drop = nn.Dropout(0.0)
        self.blocks = nn.Sequential(*(Block(dim, 12) for _ in range(12)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES["vit"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures to classes."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = self.drop(x + self.places)
        return self.head(self.norm(self.blocks(x))[:, 0])


MODELS = {"resnet50": resnet50, "unet": Unet, "vit": Vit}


def main(name: str, precision: str, batch: str, kept: str = "") -> None:
    """Train."""
    held = torch.empty(KEPT[kept] << 20, dtype=torch.uint8, device="cuda")
    order = torch.contiguous_format if name == "vit" else torch.channels_last
    model = MODELS[name]().to("cuda").to(memory_format=order).train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    side, size = SIDES[name], int(batch)
    shape = (size, side, side) if name == "unet" else (size,)
    batches = [
        (
            torch.randn(size, 3, side, side).to("cuda", memory_format=order),
            torch.randint(0, CLASSES[name], shape).to("cuda"),
        )
        for _ in range(max(size * 15, 256) // size)
    ]
    dtype = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    for pictures, labels in batches[:STEPS]:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(pictures), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")
    del held


if __name__ == "__main__":
    main(*sys.argv[1:])
