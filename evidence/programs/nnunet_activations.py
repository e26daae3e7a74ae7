"""nnU-Net's own training of its plain U-Net over brain tumours, with twelve activations.

    nnunet_activations.py ACTIVATION [planned|tried]

Source: a paper's repository (nnUNetTrainer_bench12.py beside nnU-Net 2.2.1): its configuration
3d_fullres of BraTS 2023, a batch of two patches of 128 x 128 x 128 and four channels, three
regions; six levels of 32 to 320 channels, two convolutions each, instance norms; all activations
are swapped.

What decides memory: fp16 by autocast with the loss inside it and PyTorch's scaler; SGD with
Nesterov's momentum; gradients are dropped before each step and clipped; deep supervision at five
levels, of which the coarsest counts nothing; the loss of regions is a soft dice loss and a binary
cross entropy. An activation of several operators keeps what lies between them. cuDNN tries its
engines, in an epoch that is not read, and which it keeps is not known: ``planned`` engines, as
without a trial, or all that it ``tried``.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

CHANNELS, REGIONS, BATCH, SIDE = 4, 3, 2, 128
WIDTHS = (32, 64, 128, 256, 320, 320)
STEPS = 4


class Function(nn.Module):
    """An activation of several operators."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each value by itself."""
        match self.name:
            case "Mish":
                return x * torch.tanh(functional.softplus(x))
            case "ELiSH":
                return functional.elu(x) * torch.sigmoid(x)
            case "HardELiSH":
                return functional.elu(x) * functional.hardsigmoid(x)
            case "Logish":
                return x * torch.log(1 + torch.sigmoid(x))
            case "Smish":
                return x * torch.tanh(torch.log(1 + torch.sigmoid(x)))
            case "TanhExp":
                return x * torch.tanh(torch.exp(torch.clamp(x, max=20)))
        raise ValueError(self.name)


def activation(name: str) -> nn.Module:
    """Of its name."""
    match name:
        case "LeakyReLU":
            return nn.LeakyReLU(inplace=True)
        case "ReLU":
            return nn.ReLU(inplace=True)
        case "ELU":
            return nn.ELU(inplace=True)
        case "Swish":
            return nn.SiLU(inplace=True)
        case "GELU":
            return nn.GELU()
        case "PReLU":
            return nn.PReLU()
    return Function(name)


def twice(before: int, after: int, stride: int, name: str) -> nn.Sequential:
    """Two convolutions, each with norm and activation."""
    layers: list[nn.Module] = []
    for channels, step in ((before, stride), (after, 1)):
        layers.append(nn.Conv3d(channels, after, 3, step, 1))
        layers.append(nn.InstanceNorm3d(after, eps=1e-5, affine=True))
        layers.append(activation(name))
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """Down and up, with an answer at each level."""

    def __init__(self, name: str) -> None:
        super().__init__()
        before = (CHANNELS, *WIDTHS[:-1])
        pairs = zip(before, WIDTHS, strict=True)
        self.down = nn.ModuleList(
            twice(a, b, 2 if at else 1, name) for at, (a, b) in enumerate(pairs)
        )
        pairs = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.wider = nn.ModuleList(nn.ConvTranspose3d(deep, wide, 2, 2) for deep, wide in pairs)
        self.up = nn.ModuleList(twice(2 * wide, wide, 1, name) for _, wide in pairs)
        self.answers = nn.ModuleList(nn.Conv3d(wide, REGIONS, 1) for _, wide in pairs)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Logits, the finest first."""
        skips = []
        for part in self.down:
            x = part(x)
            skips.append(x)
        x = skips.pop()
        found = []
        for wider, part, answer in zip(self.wider, self.up, self.answers, strict=True):
            x = wider(x)
            x = torch.cat((x, skips.pop()), 1)
            x = part(x)
            found.append(answer(x))
        return found[::-1]


def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross entropy and soft dice of regions."""
    cross = functional.binary_cross_entropy_with_logits(logits, wanted)
    x = torch.sigmoid(logits)
    axes = tuple(range(2, x.ndim))
    with torch.no_grad():
        there = wanted.sum(axes)
    both, found = (x * wanted).sum(axes).sum(0), x.sum(axes).sum(0)
    dice = (2 * both + 1e-5) / torch.clip(there.sum(0) + found + 1e-5, 1e-8)
    return cross - dice.mean()


def main(name: str, engines: str = "planned", side: str = str(SIDE)) -> None:
    """Train."""
    torch.backends.cudnn.benchmark = engines == "tried"
    model = Unet(name).to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    settings = {"lr": 1e-2, "weight_decay": 3e-5, "momentum": 0.99, "nesterov": True}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    scaler = torch.amp.GradScaler("cuda")
    weights = [1 / 2**level for level in range(len(WIDTHS) - 1)]
    weights[-1] = 0.0
    for _ in range(STEPS):
        data = torch.randn(BATCH, CHANNELS, *[int(side)] * 3).to("cuda", non_blocking=True)
        targets = [
            torch.zeros(BATCH, REGIONS, *[int(side) >> level] * 3).to("cuda", non_blocking=True)
            for level in range(len(weights))
        ]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            found = model(data)
            loss = weights[0] * loss_of(found[0], targets[0])
            for share, one, goal in zip(weights[1:], found[1:], targets[1:], strict=True):
                loss += share * loss_of(one, goal)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 12)
        scaler.step(optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
