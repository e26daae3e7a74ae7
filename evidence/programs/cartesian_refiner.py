"""Forward and backward passes of a network that moves a protein's points, length after length.

    cartesian_refiner.py LENGTH...

Source: a public repository (scripts/run_e010_phase2.py, its CUDA lifecycle, with
src/protein_distance_diffusion/models/e010_global_equivariant.py): one protein of LENGTH points,
four layers of 192 with attention of all points to all, whose scores hear distances in 16 radial
functions and places in the chain, and 32 channels of vectors that are sums of directions. Lengths
run one behind the other in one process; the last is the one that is read.

What decides memory: what belongs to pairs of points, above all gates and directions of 32 channels;
fp32; gradients are dropped before each pass and no step is taken, though there is an optimizer. The
cache is given back between lengths while the last loss still holds its network.
"""

import math
import sys

import torch
from torch import nn

WIDTH, LAYERS, HEADS, CHANNELS, RADIAL, MOST, PASSES = 192, 4, 4, 32, 16, 500, 7


def places(shown: torch.Tensor) -> torch.Tensor:
    """Where in the chain points are, as 19 numbers."""
    many = shown.sum(dim=1, keepdim=True)
    bool(torch.any(many == 0))
    at = (shown.long().cumsum(dim=1) - 1).clamp_min(0).to(torch.float32)
    part = at / (many - 1).clamp_min(1).to(at.dtype)
    first, last = at / MOST, (many.to(at.dtype) - 1 - at).clamp_min(0) / MOST
    steps = torch.tensor((1, 2, 4, 8, 16, 32, 64, 128), device=at.device, dtype=at.dtype)
    phase = 2.0 * math.pi * part[..., None] * steps
    waves = torch.cat((torch.sin(phase), torch.cos(phase)), dim=-1)
    found = torch.cat((part[..., None], first[..., None], last[..., None], waves), dim=-1)
    return found * shown[..., None].to(found.dtype)


class Layer(nn.Module):
    """Attention with biases of pairs, and vectors gated by pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.radial, self.chain = nn.Linear(RADIAL, HEADS, bias=False), nn.Linear(4, HEADS, False)
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.node_gate = nn.Linear(WIDTH, CHANNELS, bias=False)
        self.radial_gate = nn.Linear(RADIAL, CHANNELS, bias=False)
        self.chain_gate = nn.Linear(4, CHANNELS, bias=False)
        self.mix, self.gate = nn.Linear(CHANNELS, CHANNELS, False), nn.Linear(WIDTH, CHANNELS)
        self.scale = nn.Parameter(torch.ones(CHANNELS))

    def normed(self, vectors: torch.Tensor) -> torch.Tensor:
        """About their mean, by their length."""
        centred = vectors - vectors.mean(dim=2, keepdim=True)
        size = centred.square().sum(dim=(2, 3), keepdim=True) / vectors.shape[2]
        return centred / size.clamp_min(1e-8).sqrt() * self.scale[None, None, :, None]

    def forward(
        self,
        x: torch.Tensor,
        vectors: torch.Tensor,
        shown: torch.Tensor,
        pairs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        radial, chain, directions = pairs
        many, length, _ = x.shape
        q = self.q(x).view(many, length, HEADS, -1).transpose(1, 2)
        k = self.k(x).view(many, length, HEADS, -1).transpose(1, 2)
        v = self.v(x).view(many, length, HEADS, -1).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        scores = scores + self.radial(radial).permute(0, 3, 1, 2)
        scores = scores + self.chain(chain).permute(0, 3, 1, 2)
        scores = scores.masked_fill(~shown[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
        y = torch.matmul(weights, v).transpose(1, 2).reshape(many, length, WIDTH)
        valid = shown[..., None].to(x.dtype)
        x = self.norm(x + self.out(y)) * valid
        x = self.norm_2(x + self.mlp(x)) * valid
        node = self.node_gate(x)
        gate = node[:, :, None, :] + node[:, None, :, :]
        gate = gate + self.radial_gate(radial) + self.chain_gate(chain)
        gate = torch.tanh(gate)
        mean = weights.mean(dim=1)
        summed = (mean[..., None, None] * gate[..., None] * directions[:, :, :, None, :]).sum(dim=2)
        mixed = self.mix(summed.transpose(-1, -2)).transpose(-1, -2)
        opened = torch.sigmoid(self.gate(x))[..., None]
        vectors = self.normed(vectors + opened * mixed)
        return x, vectors * valid[..., None]


class Net(nn.Module):
    """Points to where they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(19, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.leave = nn.Parameter(0.02 * torch.randn(CHANNELS))
        self.register_buffer("centres", torch.linspace(0.0, 32.0, RADIAL), persistent=False)

    def pairs(self, points: torch.Tensor, shown: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What belongs to two points."""
        apart = points[:, None, :, :] - points[:, :, None, :]
        distance = torch.linalg.vector_norm(apart, dim=-1).clamp_min(1e-6)
        radial = torch.exp(-((distance[..., None] - self.centres) / 2.0).square())
        at = (shown.long().cumsum(dim=1) - 1).clamp_min(0).to(points.dtype)
        far = (at[:, :, None] - at[:, None, :]).abs()
        parts = (far / (MOST - 1), torch.log1p(far) / math.log1p(MOST - 1))
        near = ((far == 1).to(points.dtype), (far == 2).to(points.dtype))
        chain = torch.stack((*parts, *near), dim=-1)
        chain = chain * (shown[:, :, None] & shown[:, None, :])[..., None]
        directions = apart / distance[..., None]
        directions = directions * (shown[:, :, None] & shown[:, None, :])[..., None]
        return radial, chain, directions

    def forward(self, points: torch.Tensor, shown: torch.Tensor) -> dict[str, torch.Tensor]:
        bool(torch.any(shown.sum(dim=1) == 0))
        x = self.enter(places(shown)) * shown[..., None].to(points.dtype)
        pairs = self.pairs(points, shown)
        vectors = points.new_zeros((*points.shape[:2], CHANNELS, 3))
        for layer in self.layers:
            x, vectors = layer(x, vectors, shown, pairs)
        moved = torch.einsum("c,bncd->bnd", self.leave, vectors)
        moved = moved * shown[..., None].to(moved.dtype)
        return {"points": points + moved, "moved": moved}


def main(*lengths: str) -> None:
    """One length after the other."""
    for length in lengths:
        model = Net().to("cuda")
        print(f"{sum(one.numel() for one in model.parameters())} parameters")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
        points = torch.randn((1, int(length), 3), device="cuda")
        truth = points + 0.35 * torch.randn_like(points)
        shown = torch.ones((1, int(length)), device="cuda", dtype=torch.bool)
        for _ in range(PASSES):
            optimizer.zero_grad(set_to_none=True)
            found = model(points, shown)
            missed, moved = found["points"] - truth, found["moved"]
            loss = missed.square().mean() + 1e-5 * moved.square().mean()
            del missed, moved
            loss.backward()
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        del model, optimizer, points, truth, shown
        torch.cuda.empty_cache()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
