"""Steps of a network that hides 64 bits in pictures of 128 and one that finds them (MBRS).

    watermark_steps.py plain|tail...

Source: a public repository (paper_extension_study/overhead, its benchmark of a training step, with
network/Encoder_MP_Decoder.py, experiments/losses.py and experiments/oklab_global.py): squeeze and
excitation blocks at full width for the picture and the bits, a decoder that halves the picture four
times, batches of 16, fp32. Both losses ran one behind the other in one process; the last of the
words is the one that is read.

What decides memory: activations; Adam; gradients are dropped before each step. The checkpoint that
a run begins with was read to the card and stays there: its weights are a second copy, its Adam's
state is the one in use. ``tail`` adds the worst patches and distances of colours to the loss. The
peak is set back after some steps; the cache is never given back.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

SIDE, BITS, WIDTH, BATCH, HALVED = 128, 64, 64, 16, 4
WARM, STEPS = 2, 2


def normed(before: int, after: int, side: int, stride: int = 1) -> list[nn.Module]:
    """A convolution without bias, and its norm."""
    made = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False)
    return [made, nn.BatchNorm2d(after)]


class Squeezed(nn.Module):
    """Three convolutions, weighed channel by channel."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.around = None
        if before != after:
            self.around = nn.Sequential(*normed(before, after, 1, stride))
        parts = [*normed(before, after, 1, stride), nn.ReLU(inplace=True)]
        parts += [*normed(after, after, 3), nn.ReLU(inplace=True), *normed(after, after, 1)]
        self.parts = nn.Sequential(*parts)
        self.weight = nn.Sequential(
            nn.AdaptiveAvgPool2d((1, 1)),
            nn.Conv2d(after, after // 8, 1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(after // 8, after, 1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = x
        x = self.parts(x)
        x = x * self.weight(x)
        if self.around is not None:
            same = self.around(same)
        x += same
        return functional.relu(x)


def convolved(before: int, after: int) -> nn.Sequential:
    """A convolution, its norm and a threshold."""
    made = nn.Conv2d(before, after, 3, padding=1)
    return nn.Sequential(made, nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def enlarged() -> nn.Sequential:
    """Twice the side."""
    made = nn.ConvTranspose2d(WIDTH, WIDTH, 2, stride=2)
    return nn.Sequential(made, nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True))


class Net(nn.Module):
    """Hides, cuts a part out and finds."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Sequential(
            convolved(3, WIDTH), *(Squeezed(WIDTH, WIDTH) for _ in range(4))
        )
        self.bits = nn.Sequential(
            convolved(1, WIDTH),
            *(enlarged() for _ in range(HALVED)),
            *(Squeezed(WIDTH, WIDTH) for _ in range(5)),
        )
        self.both, self.last = convolved(2 * WIDTH, WIDTH), nn.Conv2d(WIDTH + 3, 3, 1)
        parts: list[nn.Module] = [convolved(3, WIDTH), Squeezed(WIDTH, WIDTH)]
        width = WIDTH
        for _ in range(HALVED):
            parts += [Squeezed(width, width), Squeezed(width, 2 * width, 2)]
            width *= 2
        self.decoder = nn.Sequential(*parts, convolved(width, WIDTH), convolved(WIDTH, 1))

    def forward(self, picture: torch.Tensor, bits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        side = int(BITS**0.5)
        first, second = self.picture(picture), self.bits(bits.view(-1, 1, side, side))
        third = self.both(torch.cat([first, second], dim=1))
        hidden = self.last(torch.cat([third, picture], dim=1))
        mask = torch.zeros_like(hidden)
        mask[:, :, 10:110, 10:110] = 1
        cut = hidden * mask
        return hidden, cut, self.decoder(cut).view(len(picture), -1)


def patches(hidden: torch.Tensor, cover: torch.Tensor) -> dict[str, torch.Tensor]:
    """How far pictures are apart, overall and in patches."""
    overall = functional.mse_loss(hidden, cover)
    squares = functional.pad((hidden - cover).pow(2), (0, 0, 0, 0))
    valid = functional.pad(hidden.new_ones((1, 1, SIDE, SIDE)), (0, 0, 0, 0))
    parts = functional.unfold(squares, kernel_size=16, stride=8).view(len(hidden), 3, 256, -1)
    sums = parts.sum(dim=2).sum(dim=1)
    weights = functional.unfold(valid, kernel_size=16, stride=8).sum(dim=1).squeeze(0)
    weights.sum().item()
    scores = sums / (weights.unsqueeze(0) * 3).clamp_min(1)
    mean = ((scores * weights.unsqueeze(0)).sum(dim=1) / weights.sum().clamp_min(1)).mean()
    (overall - mean).abs().item()
    many = -(-scores.shape[1] // 10)
    worst, which = torch.topk(scores, many, dim=1, sorted=False)
    heavy = weights.unsqueeze(0).expand_as(scores).gather(1, which)
    worst = ((worst * heavy).sum(dim=1) / heavy.sum(dim=1).clamp_min(1)).mean()
    return {"overall": overall, "mean": mean, "worst": worst}


def oklab(rgb: torch.Tensor) -> torch.Tensor:
    """Colours as they are seen."""
    rgb = rgb.clamp(0, 1)
    light = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055).pow(2.4))
    r, g, b = light.unbind(dim=1)
    cones = torch.stack([0.4 * r + 0.5 * g + 0.1 * b for _ in range(3)], dim=1)
    roots = torch.where(cones < 1e-12, cones * 1e8, cones.clamp_min(1e-12).pow(1.0 / 3.0))
    r, g, b = roots.unbind(dim=1)
    return torch.stack([0.2 * r + 0.8 * g - 0.1 * b for _ in range(3)], dim=1)


def colours(hidden: torch.Tensor, cover: torch.Tensor) -> dict[str, torch.Tensor]:
    """How far colours are apart."""
    apart = oklab((hidden + 1.0) / 2.0) - oklab((cover + 1.0) / 2.0)
    all_of = (apart.square().sum(dim=1) + 1e-12).sqrt()
    hue = (apart[:, 1:3].square().sum(dim=1) + 1e-12).sqrt()
    signed = {"first": apart[:, 1].mean(), "second": apart[:, 2].mean()}
    return {"all": (all_of - 1e-6).mean(), "hue": (hue - 1e-6).mean(), **signed}


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: torch.Tensor,
    bits: torch.Tensor,
    kind: str,
) -> None:
    """One of them."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    hidden, _cut, found = model(pictures, bits)
    parts = patches(hidden, pictures)
    if kind == "plain":
        loss = parts["overall"]
    else:
        loss = 0.5 * parts["overall"] + 0.5 * parts["worst"]
        loss = loss + 0.06 * colours(hidden, pictures)["all"]
    loss = 10.0 * functional.mse_loss(found, bits) + loss
    loss.backward()
    optimizer.step()


def timed(kind: str, pictures: torch.Tensor, bits: torch.Tensor) -> tuple[int, int]:
    """A run of one loss, with a checkpoint and a network of its own."""
    stored = Net()
    saved = {name: one.detach().to("cuda") for name, one in stored.state_dict().items()}
    state = {
        index: {
            "step": torch.ones(()),
            "exp_avg": torch.zeros_like(one).to("cuda"),
            "exp_avg_sq": torch.zeros_like(one).to("cuda"),
        }
        for index, one in enumerate(stored.parameters())
    }
    model = Net().to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    model.load_state_dict(saved)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for _ in range(WARM):
        step(model, optimizer, pictures, bits, kind)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step(model, optimizer, pictures, bits, kind)
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def main(*kinds: str) -> None:
    """One loss after the other."""
    pictures = torch.rand(BATCH, 3, SIDE, SIDE).to("cuda")
    bits = torch.randint(0, 2, (BATCH, BITS)).float().to("cuda")
    for kind in kinds:
        allocated, reserved = timed(kind, pictures, bits)
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
