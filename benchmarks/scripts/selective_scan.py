"""A selective state space, one token after the other."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class M(nn.Module):
    def __init__(self, d, n=16, e=2):
        super().__init__()
        self.di = d * e
        self.n = n
        self.r = math.ceil(d / 16)
        self.inp = nn.Linear(d, 2 * self.di, bias=False)
        self.conv = nn.Conv1d(self.di, self.di, 4, groups=self.di, padding=3)
        self.xp = nn.Linear(self.di, self.r + 2 * n, bias=False)
        self.dt = nn.Linear(self.r, self.di)
        self.A = nn.Parameter(torch.log(torch.arange(1, n + 1).float().repeat(self.di, 1)))
        self.D = nn.Parameter(torch.ones(self.di))
        self.o = nn.Linear(self.di, d, bias=False)
        self.norm = nn.RMSNorm(d)

    def forward(self, x0):
        x = self.norm(x0)
        b, l, d = x.shape
        x, r = self.inp(x).split([self.di, self.di], -1)
        x = F.silu(self.conv(x.transpose(1, 2))[:, :, :l].transpose(1, 2))
        A = -torch.exp(self.A.float())
        dl, B, C = self.xp(x).split([self.r, self.n, self.n], -1)
        dl = F.softplus(self.dt(dl))
        dA = torch.exp(torch.einsum("bld,dn->bldn", dl, A))
        dBu = torch.einsum("bld,bln,bld->bldn", dl, B, x)
        h = torch.zeros(b, self.di, self.n, device=x.device)
        ys = []
        for i in range(l):
            h = dA[:, i] * h + dBu[:, i]
            ys.append(torch.einsum("bdn,bn->bd", h, C[:, i]))
        y = torch.stack(ys, 1) + x * self.D
        return x0 + self.o(y * F.silu(r))


m = nn.Sequential(nn.Embedding(500, 64), M(64), M(64), nn.RMSNorm(64), nn.Linear(64, 500)).cuda()
optimizer = torch.optim.AdamW(m.parameters(), 1e-3, amsgrad=True)
for i in range(3):
    x = torch.randint(0, 500, (4, 49)).cuda()
    loss = F.cross_entropy(m(x[:, :-1]).transpose(1, 2), x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
