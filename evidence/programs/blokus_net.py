"""Steps of a policy and value network for the game Blokus, in mixed precision, batch after batch.

    blokus_net.py [planned|tried] BATCH...

Source: a public repository (core/network.py, core/train.py, scripts/bench_train_step.py): planes of
14 x 14, 46 of them, a convolution to 128 channels, 8 residual blocks, a policy of 91 planes, a
value and one more answer, each behind a convolution of 1 x 1. Batches run one behind the other in
one process, each with a network of its own, and no cache is given back between; the last of BATCH
is the one that is read.

What decides memory: fp16 by autocast with the loss inside it and PyTorch's scaler; SGD with
momentum; gradients are dropped before each step; the loss of the policy gathers the logits of legal
moves, up to 828. Whether cuDNN was asked to try its engines is not seen: ``planned``, as without a
trial, or all that it ``tried``.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

PLANES, SIDE, WIDTH, BLOCKS, MOVES, LEGAL = 46, 14, 128, 8, 91, 828
STEPS = 5


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(WIDTH)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(y)))


def scalar() -> nn.Sequential:
    """One number of a position."""
    layers: list[nn.Module] = [nn.Conv2d(WIDTH, 1, 1, bias=False), nn.BatchNorm2d(1)]
    layers += [nn.ReLU(inplace=True), nn.Flatten(1), nn.Linear(SIDE * SIDE, 1)]
    return nn.Sequential(*layers)


class Net(nn.Module):
    """Positions to logits of moves and two numbers."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Conv2d(PLANES, WIDTH, 3, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*(Residual() for _ in range(BLOCKS)))
        self.policy = nn.Conv2d(WIDTH, MOVES, 1)
        self.value, self.other = scalar(), scalar()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All three."""
        x = self.blocks(self.stem(x))
        planes = self.policy(x)
        policy = planes.permute(0, 2, 3, 1).reshape(len(planes), -1)
        return policy, torch.tanh(self.value(x)).squeeze(-1), self.other(x)


def train(batch: int) -> None:
    """A network of its own."""
    model = Net().to("cuda").train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    planes = torch.randint(0, 2, (batch, PLANES, SIDE, SIDE)).float().to("cuda")
    legal = torch.randint(0, SIDE * SIDE * MOVES, (batch, LEGAL)).to("cuda")
    visits = torch.ones(batch, LEGAL).to("cuda")
    outcome, other = torch.zeros(batch).to("cuda"), torch.zeros(batch, 1).to("cuda")
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            logits, value, guess = model(planes)
            likely = functional.log_softmax(logits.gather(1, legal).float(), dim=1)
            loss = -(visits / visits.sum(1, keepdim=True) * likely).sum(1).mean()
            loss = loss + functional.mse_loss(value, outcome) + functional.mse_loss(guess, other)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def main(*words: str) -> None:
    """Train one batch after the other."""
    torch.backends.cudnn.benchmark = "tried" in words
    for batch in [word for word in words if word not in ("planned", "tried")]:
        torch.cuda.reset_peak_memory_stats()
        train(int(batch))
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
