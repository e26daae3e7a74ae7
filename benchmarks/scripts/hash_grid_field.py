"""A radiance field over hashed grids of many resolutions, trained under autocast."""

import torch
from torch import nn


class Hash(nn.Module):
    def __init__(self, L=8, T=2**14, F=2):
        super().__init__()
        self.t = nn.ModuleList(nn.Embedding(T, F) for _ in range(L))
        self.T = T
        self.register_buffer(
            "off", torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
        )
        [nn.init.uniform_(e.weight, -1e-4, 1e-4) for e in self.t]

    def forward(self, x):
        out = []
        for l, e in enumerate(self.t):
            r = int(16 * 1.38**l)
            p = x * r
            b = p.floor().long()
            w = p - b
            c = b[:, None] + self.off[None]
            h = (c[..., 0] * 1) ^ (c[..., 1] * 2654435761) ^ (c[..., 2] * 805459861)
            f = e(h % self.T)
            o = self.off[None].float()
            ww = torch.prod(w[:, None] * o + (1 - w[:, None]) * (1 - o), -1, keepdim=True)
            out.append((f * ww).sum(1))
        return torch.cat(out, -1)


enc = Hash().cuda()
mlp = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)).cuda()
col = nn.Sequential(nn.Linear(16 + 3, 64), nn.ReLU(), nn.Linear(64, 3), nn.Sigmoid()).cuda()
optimizer = torch.optim.Adam(
    [
        {"params": enc.parameters(), "lr": 1e-2},
        {"params": [*mlp.parameters(), *col.parameters()], "weight_decay": 1e-6},
    ],
    betas=(0.9, 0.99),
    eps=1e-15,
)
sc = torch.amp.GradScaler()
for i in range(3):
    ro = torch.rand(256, 3, device="cuda")
    rd = nn.functional.normalize(torch.randn(256, 3, device="cuda"), dim=-1)
    t = (
        torch.linspace(0, 1, 48, device="cuda")[None].expand(256, -1)
        + torch.rand(256, 48, device="cuda") / 48
    )
    pts = (ro[:, None] + rd[:, None] * t[..., None]).clamp(0, 1).reshape(-1, 3)
    with torch.autocast("cuda"):
        h = mlp(enc(pts))
        sig = torch.exp(h[:, 0].float()).view(256, 48)
        c = col(torch.cat([h, rd.repeat_interleave(48, 0)], -1)).view(256, 48, 3)
    dt = torch.diff(t, append=t[:, -1:] + 1e10)
    a = 1 - torch.exp(-sig * dt)
    T = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a + 1e-10], -1), -1)[:, :-1]
    w = a * T
    rgb = (w[..., None] * c).sum(1)
    loss = (
        nn.functional.huber_loss(rgb, torch.rand(256, 3, device="cuda")) + 1e-3 * w.prod(-1).mean()
    )
    optimizer.zero_grad()
    sc.scale(loss).backward()
    sc.step(optimizer)
    sc.update()
    print(loss.item())
