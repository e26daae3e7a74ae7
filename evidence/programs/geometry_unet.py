"""A small U-Net that marks lines, circles and points of drawn diagrams, in mixed precision.

    geometry_unet.py BATCH [planned|tried]

Source: a public repository (geometry_diagram_proof: ml/model.py, ml/train.py), pictures of 320 x
320, six classes. Levels of 24, 48, 96 and 160 channels; each is a convolution of 3 x 3 and, added
to its result, a depthwise one and one of 1 x 1, all with batch norms and ReLU6 in place; up by
bilinear interpolation.

What decides memory: fp16 by autocast, with the loss (a weighted cross entropy) inside it; AdamW;
gradients are dropped before each step. The training script has cuDNN try its engines; whether the
probe that was read did, and which engines were kept, is not known: ``planned`` as without a trial,
or all that it ``tried``.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

WIDTHS, CLASSES, SIDE = (24, 48, 96, 160), 6, 320
STEPS = 5


class Level(nn.Module):
    """A convolution and what is added to its result."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        first = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.first = nn.Sequential(first, nn.BatchNorm2d(after), nn.ReLU6(inplace=True))
        layers: list[nn.Module] = [nn.Conv2d(after, after, 3, 1, 1, groups=after, bias=False)]
        layers += [nn.BatchNorm2d(after), nn.ReLU6(inplace=True)]
        layers.append(nn.Conv2d(after, after, 1, bias=False))
        self.second = nn.Sequential(*layers, nn.BatchNorm2d(after), nn.ReLU6(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels before to after."""
        x = self.first(x)
        return x + self.second(x)


class Unet(nn.Module):
    """Down and up."""

    def __init__(self) -> None:
        super().__init__()
        before = (3, *WIDTHS[:-1])
        self.down = nn.ModuleList(Level(a, b) for a, b in zip(before, WIDTHS, strict=True))
        pairs = zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True)
        self.up = nn.ModuleList(Level(deep + wide, wide) for deep, wide in pairs)
        self.head = nn.Conv2d(WIDTHS[0], CLASSES, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures to classes of each pixel."""
        a = self.down[0](x)
        b = self.down[1](self.pool(a))
        c = self.down[2](self.pool(b))
        d = self.down[3](self.pool(c))
        for part, skip in zip(self.up, (c, b, a), strict=True):
            d = functional.interpolate(d, skip.shape[-2:], mode="bilinear", align_corners=False)
            d = part(torch.cat((d, skip), dim=1))
        return self.head(d)


def main(batch: str, engines: str = "planned") -> None:
    """Train."""
    torch.backends.cudnn.benchmark = engines == "tried"
    model = Unet().to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    weights = torch.ones(CLASSES, device="cuda")
    for _ in range(STEPS):
        pictures = torch.rand(int(batch), 3, SIDE, SIDE).to("cuda", non_blocking=True)
        masks = torch.randint(0, CLASSES, (int(batch), SIDE, SIDE)).to("cuda", non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(model(pictures), masks, weight=weights)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
