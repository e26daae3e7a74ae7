"""Double backward: an energy whose negative gradient is a force, trained on both (a neural potential)."""

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self, width=128, rounds=3):
        super().__init__()
        self.kinds = nn.Embedding(20, width)
        self.radial = nn.ModuleList(
            nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(rounds)
        )
        self.update = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(rounds)
        )
        self.out = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, 1))
        self.register_buffer("centers", torch.linspace(0, 6, 32))

    def forward(self, kinds, places, pairs, graphs, count):
        i, j = pairs
        apart = (places[i] - places[j]).norm(dim=-1)
        smooth = torch.exp(-((apart[:, None] - self.centers) ** 2) * 4)
        cut = 0.5 * (torch.cos(apart * torch.pi / 6) + 1) * (apart < 6)
        x = self.kinds(kinds)
        for radial, update in zip(self.radial, self.update):
            message = x[j] * radial(smooth) * cut[:, None]
            x = x + update(torch.zeros_like(x).index_add(0, i, message))
        atoms = self.out(x).squeeze(-1)
        return torch.zeros(count, device=x.device).scatter_add(0, graphs, atoms)


device = "cuda"
model = Potential().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
for step in range(3):
    count, each = 12, 20
    n = count * each
    kinds = torch.randint(0, 20, (n,), device=device)
    places = torch.randn(n, 3, device=device, requires_grad=True)
    graphs = torch.arange(count).repeat_interleave(each).to(device)
    pairs = torch.cartesian_prod(torch.arange(each), torch.arange(each))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]].t()
    pairs = torch.cat([pairs + k * each for k in range(count)], 1).to(device)
    energy = model(kinds, places, pairs, graphs, count)
    (forces,) = torch.autograd.grad(energy.sum(), places, create_graph=True)
    loss = energy.pow(2).mean() + 10 * (forces + torch.randn_like(places)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    print(step, loss.item())
