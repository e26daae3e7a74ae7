"""Spectrograms and volumes in bfloat16: batch norm of the input, of one channel, of volumes."""

import torch
from torch import nn
from torch.func import functional_call, jvp

DEVICE = "cuda"


class Gate(nn.Module):
    """Attention of one channel, as in Attention U-Net."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        conv = nn.Conv2d if rank == 2 else nn.Conv3d
        norm = nn.BatchNorm2d if rank == 2 else nn.BatchNorm3d
        self.score = nn.Sequential(conv(channels, 1, 1, bias=False), norm(1), nn.Sigmoid())

    def forward(self, x):
        return x * self.score(x)


def sounds():
    return nn.Sequential(
        nn.BatchNorm2d(1),
        nn.Conv2d(1, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        Gate(24, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def volumes():
    return nn.Sequential(
        nn.Conv3d(2, 12, 3, padding=1, bias=False),
        nn.BatchNorm3d(12, affine=False),
        nn.ReLU(),
        Gate(12, 3),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
    )


def train(model, inputs, dtype) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        with torch.autocast("cuda", dtype):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def slopes(model, inputs) -> None:
    """How much the answer changes along a direction, twice."""
    weights = dict(model.named_parameters())
    for _ in range(2):
        _, slope = jvp(
            lambda x: functional_call(model, weights, (x,)), (inputs,), (torch.ones_like(inputs),)
        )
        slope.square().mean().backward()


def main() -> None:
    torch.manual_seed(0)
    train(sounds().to(DEVICE), torch.randn(8, 1, 64, 100).to(DEVICE), torch.bfloat16)
    volume = torch.randn(2, 2, 16, 24, 24).to(DEVICE, memory_format=torch.channels_last_3d)
    last = volumes().to(DEVICE, memory_format=torch.channels_last_3d)
    train(last, volume, torch.bfloat16)
    head = nn.Sequential(nn.Linear(64, 96), nn.Softplus(), nn.Linear(96, 10)).to(DEVICE)
    slopes(head, torch.randn(32, 64).to(DEVICE))


main()
