"""Steps of SiT, a transformer that learns the velocity of noised latents of pictures.

    sit_latents.py small|base BATCH [averaged]

``small`` has 33 million parameters and ten classes, ``base`` 130 million and one. With
``averaged``, weights have a moving average, and cuDNN tries its algorithms; without, latents come
in fp16 from a file, and one pass there and back comes first, which asks for the kind of attention.
Source: Grigoriy-V/ML_U-Net_test, mini_diffusion: benchmark_afhq_sit.py, benchmark_sit.py and sit.

What decides memory: 64 tokens a picture; bf16 by autocast, in which norms, and what scales and
shifts them, make fp32; AdamW, fused; gradients are dropped before each step. PyTorch's build for
Windows has no flash attention, so the efficient one is taken. Three steps stand for 40 or 60.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = {"small": (384, 6, 10), "base": (768, 12, 1)}
"""Width, heads, classes."""
LAYERS, SIDE, CHANNELS, PATCH, STEPS = 12, 16, 4, 2, 3


def modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scaled and shifted, each sample by its own."""
    return x * (1 + scale[:, None]) + shift[:, None]


class Block(nn.Module):
    """Attention and a perceptron, told by time and class what to do."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        plain = {"elementwise_affine": False, "eps": 1e-6}
        self.norm1, self.norm2 = nn.LayerNorm(width, **plain), nn.LayerNorm(width, **plain)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.perceptron = nn.Sequential(wide, nn.GELU(approximate="tanh"), narrow)
        self.told = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to the same."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.told(told).chunk(6, dim=1)
        y = modulated(self.norm1(x), shift1, scale1)
        batch, tokens, width = y.shape
        qkv = self.qkv(y).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            z = functional.scaled_dot_product_attention(q, k, v)
        z = z.transpose(1, 2).reshape(batch, tokens, width)
        x = x + gate1[:, None] * self.out(z)
        return x + gate2[:, None] * self.perceptron(modulated(self.norm2(x), shift2, scale2))


class Model(nn.Module):
    """Latents, times and classes to velocities."""

    def __init__(self, size: str) -> None:
        super().__init__()
        width, heads, self.classes = SIZES[size]
        self.width, self.grid = width, SIDE // PATCH
        self.patches = nn.Conv2d(CHANNELS, width, PATCH, stride=PATCH)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.kinds = nn.Embedding(self.classes + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.last = nn.Linear(width, PATCH * PATCH * CHANNELS)
        self.told = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.register_buffer("places", torch.randn(1, self.grid**2, width))

    def waves(self, t: torch.Tensor) -> torch.Tensor:
        """Of times."""
        half = self.width // 2
        steps = torch.arange(half, device=t.device, dtype=torch.float32)
        angles = t.float()[:, None] * torch.exp(-math.log(1e4) * steps / half)[None]
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def forward(self, x: torch.Tensor, t: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        """Of the shape of X."""
        dropped = torch.rand(kinds.shape, device=x.device) < 0.1
        kinds = torch.where(dropped, torch.full_like(kinds, self.classes), kinds)
        if (kinds < 0).any() or (kinds > self.classes).any():
            raise ValueError
        y = self.patches(x).flatten(2).transpose(1, 2) + self.places
        told = self.time(self.waves(t)) + self.kinds(kinds)
        for block in self.blocks:
            y = block(y, told)
        shift, scale = self.told(told).chunk(2, dim=1)
        y = self.last(modulated(self.norm(y), shift, scale))
        y = y.reshape(-1, self.grid, self.grid, PATCH, PATCH, CHANNELS)
        return y.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


def mixed() -> torch.autocast:
    """Bf16."""
    return torch.autocast("cuda", dtype=torch.bfloat16)


def ask(model: Model, batch: int) -> None:
    """One pass, whose gradients go again."""
    x = torch.randn(batch, CHANNELS, SIDE, SIDE, device="cuda")
    kinds = torch.arange(batch, device="cuda") % model.classes
    t = torch.rand(batch, device="cuda")
    with mixed():
        model(x, t, kinds).float().sum().backward()
    model.zero_grad(set_to_none=True)


def main(size: str, batch: str, *words: str) -> None:
    """Train."""
    averaged = "averaged" in words
    torch.backends.cudnn.benchmark = averaged
    shape = int(batch), CHANNELS, SIDE, SIDE
    latents = torch.randn(shape) if averaged else torch.randn(shape).half()
    model = Model(size).to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    shadows = [one.detach().clone() for one in model.parameters()] if averaged else []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if not averaged:
        ask(model, int(batch))

    def step() -> None:
        clean = latents.pin_memory().to("cuda", non_blocking=True).float()
        kinds = torch.zeros(int(batch), dtype=torch.long).pin_memory().to("cuda", non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        noise, t = torch.randn_like(clean), torch.rand(len(clean), device="cuda")
        part = t.reshape(-1, 1, 1, 1)
        noised, wanted = (1.0 - part) * clean + part * noise, noise - clean
        with mixed():
            loss = functional.mse_loss(model(noised, t, kinds).float(), wanted.float())
        loss.backward()
        optimizer.step()
        if averaged:
            now = [one.detach() for one in model.parameters()]
            torch._foreach_mul_(shadows, 0.9999)
            torch._foreach_add_(shadows, now, alpha=1e-4)

    for _ in range(STEPS):
        step()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
