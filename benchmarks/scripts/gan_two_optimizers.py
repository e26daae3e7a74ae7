"""A conditional GAN with R1 penalty, hinge loss, lazy regularisation, EMA generator and autocast."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda"


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label = nn.Embedding(10, 64)
        self.start = nn.Linear(192, 256 * 4 * 4)
        self.ups = nn.ModuleList(
            nn.Sequential(
                nn.Upsample(scale_factor=2),
                nn.Conv2d(a, b, 3, 1, 1),
                nn.InstanceNorm2d(b),
                nn.LeakyReLU(0.2),
            )
            for a, b in ((256, 128), (128, 64), (64, 32))
        )
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, z, y):
        x = self.start(torch.cat([z, self.label(y)], 1)).view(-1, 256, 4, 4)
        for up in self.ups:
            x = up(x)
        return torch.tanh(self.out(x))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(
                layer
                for a, b in ((3, 64), (64, 128), (128, 256))
                for layer in (nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2))
            )
        )
        self.out, self.label = nn.Linear(256, 1), nn.Embedding(10, 256)

    def forward(self, x, y):
        h = self.body(x).sum((2, 3))
        return self.out(h).squeeze(1) + (self.label(y) * h).sum(1)


g, d = Generator().to(device), Critic().to(device)
kept = copy.deepcopy(g).eval().requires_grad_(False)
for_g = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.0, 0.99))
for_d = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.0, 0.99))
for step in range(4):
    real, y = (
        torch.rand(48, 3, 32, 32, device=device) * 2 - 1,
        torch.randint(0, 10, (48,), device=device),
    )
    z = torch.randn(48, 128, device=device)
    d.requires_grad_(True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            fake = g(z, y)
        loss = F.relu(1 - d(real, y)).mean() + F.relu(1 + d(fake, y)).mean()
    for_d.zero_grad()
    loss.backward()
    if step % 2 == 0:
        real.requires_grad_(True)
        (slope,) = torch.autograd.grad(d(real, y).sum(), real, create_graph=True)
        (5 * slope.square().sum((1, 2, 3)).mean()).backward()
    for_d.step()
    d.requires_grad_(False)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        cheat = -d(g(torch.randn_like(z), y), y).mean()
    for_g.zero_grad()
    cheat.backward()
    for_g.step()
    with torch.no_grad():
        for p, q in zip(kept.parameters(), g.parameters()):
            p.lerp_(q, 0.01)
    print(step, loss.item(), cheat.item())
