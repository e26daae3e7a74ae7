"""An autoencoder that restores pictures of 128 by 128, by the mean error and by SSIM.

    genai_autoencoder.py BATCH PRECISION

``PRECISION``: fp16 (autocast with PyTorch's scaler) or fp32. Source: AhmedLaiq34/
genai-assignment-1, scripts/benchmark.py, ``bench_t1``: all sizes in one process, which frees each,
gives the cache back and resets the peak; each stands for itself here.

What decides memory: cuDNN is asked to try its engines, and its trial is among what is read. Each
size ends by validation of 128 pictures in fp32, so that all but the first find the engines for
these already chosen. The loss is in fp32, of SSIM by pytorch_msssim: windows of eleven, along one
axis and then the other; gradients are freed behind the forward pass; AdamW of PyTorch.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

FIRST = ("32", "fp32")
"""The size that is measured first: no validation went before."""
SIDE, LATENT, DROPOUT, SHARE = 128, 256, 0.1, 0.8
CHANNELS = (32, 64, 128, 256)
STEPS = 5
"""Of 25."""


def smoothed(pictures: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """By the window, along both axes."""
    channels = pictures.shape[1]
    out = functional.conv2d(pictures, window.transpose(2, -1), groups=channels)
    return functional.conv2d(out, window.transpose(3, -1), groups=channels)


def similarity(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """SSIM of each picture."""
    at = torch.arange(11, dtype=torch.float) - 5
    window = torch.exp(-(at**2) / (2 * 1.5**2))
    window = (window / window.sum()).repeat(x.shape[1], 1, 1, 1).to(x.device, dtype=x.dtype)
    first, second = 0.01**2, 0.03**2
    mean_x, mean_y = smoothed(x, window), smoothed(y, window)
    square_x, square_y, product = mean_x.pow(2), mean_y.pow(2), mean_x * mean_y
    spread_x = 1.0 * (smoothed(x * x, window) - square_x)
    spread_y = 1.0 * (smoothed(y * y, window) - square_y)
    together = 1.0 * (smoothed(x * y, window) - product)
    contrast = (2 * together + second) / (spread_x + spread_y + second)
    told = ((2 * product + first) / (square_x + square_y + first)) * contrast
    of_channels = torch.flatten(told, 2).mean(-1)
    torch.flatten(contrast, 2).mean(-1)
    return of_channels.mean(1)


def lost(restored: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
    """The mean error and what SSIM lacks."""
    error = (restored - clean).abs().flatten(1).mean(dim=1)
    return SHARE * error.mean() + (1.0 - SHARE) * (1.0 - similarity(restored, clean).mean())


class Autoencoder(nn.Module):
    """Four convolutions, a narrow middle, and four the other way."""

    def __init__(self) -> None:
        super().__init__()
        down: list[nn.Module] = []
        for before, after in zip((3, *CHANNELS), CHANNELS, strict=False):
            down.append(nn.Sequential(*self._down(before, after)))
        self.encoder = nn.Sequential(*down)
        self.flat = CHANNELS[-1] * (SIDE // 16) ** 2
        narrow = nn.Linear(self.flat, LATENT)
        self.to_latent = nn.Sequential(nn.Flatten(), nn.Dropout(DROPOUT), narrow)
        wide = nn.Linear(LATENT, self.flat)
        self.from_latent = nn.Sequential(wide, nn.ReLU(inplace=True), nn.Dropout(DROPOUT))
        up: list[nn.Module] = []
        for before, after in zip(CHANNELS[::-1], CHANNELS[-2::-1], strict=False):
            up.append(nn.Sequential(*self._up(before, after)))
        self.decoder = nn.Sequential(*up, nn.ConvTranspose2d(CHANNELS[0], 3, 4, 2, 1))

    @staticmethod
    def _down(before: int, after: int) -> list[nn.Module]:
        layer = nn.Conv2d(before, after, 4, stride=2, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

    @staticmethod
    def _up(before: int, after: int) -> list[nn.Module]:
        layer = nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures to pictures."""
        z = self.to_latent(self.encoder(pictures))
        h = self.from_latent(z).view(-1, CHANNELS[-1], SIDE // 16, SIDE // 16)
        return torch.sigmoid(self.decoder(h))


class Validation(nn.Module):
    """How like their originals restored pictures are."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Autoencoder()

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """SSIM of each picture."""
        return similarity(self.model(pictures), pictures)


@torch.no_grad()
def validate() -> None:
    """What ends the size before, whose memory is then given back."""
    clean = torch.rand(128, 3, SIDE, SIDE).to("cuda")
    validation = Validation().to("cuda").eval()
    optimizer = torch.optim.AdamW(validation.parameters(), lr=1e-3)
    for parameter in validation.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    validation(clean)
    del validation, optimizer, clean
    torch.cuda.empty_cache()


def main(batch: str, precision: str) -> None:
    """Train."""
    torch.backends.cudnn.benchmark = True
    mixed = precision == "fp16"
    if (batch, precision) != FIRST:
        validate()
    corrupted = torch.rand(int(batch), 3, SIDE, SIDE).to("cuda")
    clean = torch.rand(int(batch), 3, SIDE, SIDE).to("cuda")
    model = Autoencoder().to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16, enabled=mixed):
            out = model(corrupted)
        loss = lost(out.float(), clean)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(STEPS):
        step()
    print(f"allocated {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
