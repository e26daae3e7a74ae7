"""A U-Net over slices of four MRI sequences in mixed precision, to choose the slices' size.

    braintumour_unet.py SIDE BATCH

Source: a smoke test of a public repository (scripts/mri_gpu_smoke_test.py, its model in
src/segmentation/mri/unet.py): widths 32 to 256 and 512 at the bottom, batch norms, transposed
convolutions, one output; 7,763,329 parameters. Sizes ran one behind the other in one process;
before each the cache was given back and peaks were set back, so each stands for itself here.

What decides memory: fp16 by autocast with PyTorch's scaler; AdamW; gradients are dropped before
each step; the loss (half of a binary cross entropy and half of a soft dice loss) takes logits
outside autocast and is small beside the network; cuDNN tries no engines.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (32, 64, 128, 256)
STEPS = 5


def twice(before: int, after: int) -> nn.Sequential:
    """Two convolutions, each with its norm."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers.append(nn.Conv2d(channels, after, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """Down, across and up."""

    def __init__(self) -> None:
        super().__init__()
        before = (4, *WIDTHS[:-1])
        self.down = nn.ModuleList(twice(a, b) for a, b in zip(before, WIDTHS, strict=True))
        self.pool = nn.MaxPool2d(2)
        self.bottom = twice(WIDTHS[-1], 2 * WIDTHS[-1])
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in WIDTHS[::-1])
        self.up = nn.ModuleList(twice(2 * w, w) for w in WIDTHS[::-1])
        self.head = nn.Conv2d(WIDTHS[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Slices to logits."""
        skips = []
        for part in self.down:
            x = part(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for wider, part, skip in zip(self.wider, self.up, skips[::-1], strict=True):
            x = wider(x)
            x = part(torch.cat([skip, x], dim=1))
        return self.head(x)


def loss_of(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Cross entropy and dice, half each."""
    cross = functional.binary_cross_entropy_with_logits(logits, masks)
    found = torch.sigmoid(logits).flatten(1)
    wanted = masks.flatten(1)
    both = (found * wanted).sum(1)
    dice = (2 * both + 1) / (found.sum(1) + wanted.sum(1) + 1)
    return 0.5 * cross + 0.5 * (1 - dice.mean())


def main(side: str, batch: str) -> None:
    """Train."""
    model = Unet().to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda")
    slices = torch.randn(int(batch), 4, int(side), int(side), device="cuda")
    masks = (torch.rand(int(batch), 1, int(side), int(side), device="cuda") > 0.97).float()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(slices)
        loss = loss_of(logits, masks)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
