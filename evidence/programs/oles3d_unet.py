"""A U-Net over volumes of four levels in mixed precision, by what its author says of it.

    oles3d_unet.py BATCH DEPTH HEIGHT WIDTH [pooled] [strided]

Source: a report that says channels (32, 64, 128, 256), two convolutions with instance norm and
leaky ReLU a block, transposed convolutions and skips on the way up, ten classes, fp16 by autocast
with PyTorch's scaler, cross entropy and SGD with momentum; and 5,602,826 parameters, which biases
everywhere and affine norms make. It does not say how a level is halved, nor whether activations
are made in place: ``pooled`` by a maximum, with activations of their own, or ``strided`` by the
first convolution of a block, with activations in place.
"""

import itertools
import sys

import torch
from torch import nn
from torch.nn import functional

CHANNELS, CLASSES = (32, 64, 128, 256), 10
STEPS = 5


def block(before: int, after: int, *, halved: bool, inplace: bool) -> nn.Module:
    """Two convolutions."""
    layers: list[nn.Module] = []
    for at, channels in enumerate((before, after)):
        stride = 2 if halved and at == 0 else 1
        layers.append(nn.Conv3d(channels, after, 3, stride=stride, padding=1))
        layers.append(nn.InstanceNorm3d(after, affine=True))
        layers.append(nn.LeakyReLU(0.01, inplace=inplace))
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """Down and up."""

    def __init__(self, *, strided: bool) -> None:
        super().__init__()
        before = (1, *CHANNELS)
        self.down = nn.ModuleList(
            block(before[at], after, halved=strided and at > 0, inplace=strided)
            for at, after in enumerate(CHANNELS)
        )
        pairs = list(itertools.pairwise(CHANNELS))[::-1]
        self.wider = nn.ModuleList(nn.ConvTranspose3d(deep, wide, 2, 2) for wide, deep in pairs)
        self.up = nn.ModuleList(
            block(2 * wide, wide, halved=False, inplace=strided) for wide, _ in pairs
        )
        self.head = nn.Conv3d(CHANNELS[0], CLASSES, 1)
        self.pool = None if strided else nn.MaxPool3d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Volumes to classes of each voxel."""
        skips = []
        for at, part in enumerate(self.down):
            if at and self.pool is not None:
                x = self.pool(x)
            x = part(x)
            skips.append(x)
        skips.pop()
        for wider, part in zip(self.wider, self.up, strict=True):
            x = part(torch.cat([wider(x), skips.pop()], dim=1))
        return self.head(x)


def main(batch: str, depth: str, height: str, width: str, halved: str = "pooled") -> None:
    """Train."""
    sizes = (int(depth), int(height), int(width))
    model = Unet(strided=halved == "strided").to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(int(batch), 1, *sizes, device="cuda")
    y = torch.randint(0, CLASSES, (int(batch), *sizes), device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
