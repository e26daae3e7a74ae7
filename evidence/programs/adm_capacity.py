"""Updates of an ADM U-Net for pictures of animals' faces, micro-batch after micro-batch.

    adm_capacity.py BATCH...

Source: a public repository (examples/showcases/afhq-v2, its capacity tool, with models/adm_unet.py,
models/adm_blocks.py and training/trainer.py): pictures of 128, widths of 128 times 1, 1, 2, 3 and
4, two residual blocks a level, attention at 32, 16 and 8, four kinds of pictures (one for none).
Trials of several micro-batches run one behind the other; the last of BATCH is the one that is read.

What decides memory: bfloat16 by autocast, while normalisation is in fp32; gradients of several
passes are summed before each step and dropped after it; AdamW; a moving average of all weights on
the card. The peak is set back after some updates of the same trial. At the end of a trial the cache
is given back while the model is still there, so that its blocks wait for the next one.
"""

import gc
import math
import sys

import torch
from torch import nn
from torch.nn import functional

SIDE, WIDTH, TIMES, BLOCKS, ATTENDED = 128, 128, (1, 1, 2, 3, 4), 2, (32, 16, 8)
EMBEDDED, HEAD, KINDS, DROPOUT, TERMINAL = 4 * WIDTH, 64, 3, 0.1, 1000
PASSES = {1: 32, 4: 8, 6: 5, 8: 4}
MOST_PASSES, UPDATES = 4, 2


class Residual(nn.Module):
    """Two convolutions, the second scaled and shifted by time and kind."""

    def __init__(self, before: int, after: int, sized: str = "") -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.GroupNorm(32, before), nn.GroupNorm(32, after)
        sizes = {"down": nn.AvgPool2d(2), "up": nn.Upsample(scale_factor=2, mode="nearest")}
        self.size = sizes.get(sized, nn.Identity())
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.by_time = nn.Sequential(nn.SiLU(), nn.Linear(EMBEDDED, 2 * after))
        self.dropout, self.second = nn.Dropout(DROPOUT), nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        around = self.skip(self.size(x))
        y = functional.silu(self.norm(x))
        y = self.first(self.size(y))
        scale, shift = self.by_time(embedding).to(dtype=y.dtype).chunk(2, dim=1)
        y = self.norm_2(y)
        y = y * (1.0 + scale[:, :, None, None])
        y = y + shift[:, :, None, None]
        y = functional.silu(y)
        return around + self.second(self.dropout(y))


class Attention(nn.Module):
    """Of all places to all, around which the input goes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(32, width), nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        many, width, high, wide = x.shape
        parts = self.qkv(self.norm(x)).reshape(many, width // HEAD, 3, HEAD, high * wide)
        q, k, v = (one.transpose(-2, -1) for one in parts.unbind(dim=2))
        y = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-2, -1).reshape(x.shape))


class Entry(nn.Conv2d):
    """The first convolution, which heeds no time."""

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Chain(nn.ModuleList):
    """Parts of one block."""

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        for part in self:
            x = part(x, embedding)
        return x


class Unet(nn.Module):
    """Noise of a picture, by its time and kind."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(WIDTH, EMBEDDED), nn.SiLU(), nn.Linear(EMBEDDED, EMBEDDED)
        )
        self.kind = nn.Embedding(KINDS + 1, EMBEDDED)
        width, side, widths = WIDTH, SIDE, [WIDTH]
        self.down = nn.ModuleList([Chain([Entry(3, WIDTH, 3, padding=1)])])
        for level, times in enumerate(TIMES):
            for _ in range(BLOCKS):
                block = Chain([Residual(width, times * WIDTH)])
                width = times * WIDTH
                if side in ATTENDED:
                    block.append(Attention(width))
                self.down.append(block)
                widths.append(width)
            if level + 1 < len(TIMES):
                self.down.append(Chain([Residual(width, width, "down")]))
                widths.append(width)
                side //= 2
        self.middle = Chain([Residual(width, width), Attention(width), Residual(width, width)])
        self.up = nn.ModuleList()
        for level, times in reversed(list(enumerate(TIMES))):
            for index in range(BLOCKS + 1):
                block = Chain([Residual(width + widths.pop(), times * WIDTH)])
                width = times * WIDTH
                if side in ATTENDED:
                    block.append(Attention(width))
                if level and index == BLOCKS:
                    block.append(Residual(width, width, "up"))
                    side *= 2
                self.up.append(block)
        self.norm, self.out = nn.GroupNorm(32, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, at: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        half = WIDTH // 2
        steps = torch.exp(-math.log(10000) * torch.arange(half, device=x.device).float() / half)
        angles = at.float()[:, None] * steps[None]
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        embedding = embedding + self.kind(kinds).to(dtype=embedding.dtype)
        y, kept = x, []
        for block in self.down:
            y = block(y, embedding)
            kept.append(y)
        y = self.middle(y, embedding)
        for block in self.up:
            y = block(torch.cat([y, kept.pop()], dim=1), embedding)
        return self.out(functional.silu(self.norm(y.to(dtype=x.dtype))))


class Trial:
    """One micro-batch: model, its moving average and optimizer."""

    def __init__(self, batch: int) -> None:
        self.batch, self.passes = batch, min(MOST_PASSES, PASSES.get(batch, 1))
        self.model = Unet().to("cuda").train()
        self.mean = [one.detach().clone() for one in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.0)
        chances = torch.linspace(0.999, 0.001, TERMINAL + 1)
        self.signal, self.noise = chances.sqrt().to("cuda"), (1 - chances).sqrt().to("cuda")

    def loss(self, clean: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Weighted by how clear a picture is; with what is kept for reports."""
        bool(torch.any((kinds < 0) | (kinds >= KINDS)))
        dropped = torch.rand(kinds.shape, device="cuda") < 0.1
        shown = torch.where(dropped, torch.full_like(kinds, KINDS), kinds)
        at = torch.randint(1, TERMINAL + 1, (self.batch,), device="cuda")
        noise = torch.randn_like(clean)
        signal, blur = (one[at][:, None, None, None] for one in (self.signal, self.noise))
        noisy = signal * clean + blur * noise
        guess = self.model(noisy, at - 1, shown)
        back = (noisy - blur * guess) / signal
        each = functional.mse_loss(guess, noise, reduction="none").flatten(1).mean(1)
        weights = (1.0 + (self.signal[at] / self.noise[at]).square()).pow(-1.0)
        each = weights * each
        return each.mean(), back, guess, noise, clean, each.detach()

    def update(self) -> None:
        """Several passes and a step."""
        losses = []
        for _ in range(self.passes):
            clean = torch.rand(self.batch, 3, SIDE, SIDE).to("cuda")
            kinds = torch.randint(KINDS, (self.batch,)).to("cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                kept = self.loss(clean, kinds)
                part = kept[0] / self.passes
            losses.append(kept[0].detach().clone())
            part.backward()
            del part, clean, kinds
        torch.stack(losses).cpu()
        float(nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for mean, one in zip(self.mean, self.model.parameters(), strict=True):
            mean.mul_(0.9999).add_(one.detach(), alpha=0.0001)
        del kept


def run(batch: int) -> tuple[int, int]:
    """What a trial reads."""
    trial = Trial(batch)
    print(f"{sum(one.numel() for one in trial.model.parameters())} parameters")
    for _ in range(UPDATES):
        trial.update()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(UPDATES):
        trial.update()
    read = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    return read


def main(*batches: str) -> None:
    """One micro-batch after the other."""
    for batch in batches:
        allocated, reserved = run(int(batch))
        gc.collect()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
