"""A deep equilibrium model: Anderson acceleration, and a backward hook that solves again."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import autograd

torch.manual_seed(0)


class Cell(nn.Module):
    def __init__(s, c=32, h=48):
        super().__init__()
        s.c1 = nn.Conv2d(c, h, 3, padding=1, bias=False)
        s.c2 = nn.Conv2d(h, c, 3, padding=1, bias=False)
        s.n = nn.ModuleList([nn.GroupNorm(8, k) for k in (h, c, c)])
        s.c2.weight.data.normal_(0, 0.01)

    def forward(s, z, x):
        y = s.n[0](F.relu(s.c1(z)))
        return s.n[2](F.relu(z + s.n[1](x + s.c2(y))))


def anderson(f, x0, m=4, lam=1e-4, it=8, beta=1.0):
    b, d, H, W = x0.shape
    X = torch.zeros(b, m, d * H * W, dtype=x0.dtype, device=x0.device)
    Fv = torch.zeros_like(X)
    X[:, 0], Fv[:, 0] = x0.view(b, -1), f(x0).view(b, -1)
    X[:, 1], Fv[:, 1] = Fv[:, 0], f(Fv[:, 0].view_as(x0)).view(b, -1)
    Hm = torch.zeros(b, m + 1, m + 1, device=x0.device)
    Hm[:, 0, 1:] = Hm[:, 1:, 0] = 1
    y = torch.zeros(b, m + 1, 1, device=x0.device)
    y[:, 0] = 1
    res = []
    for k in range(2, it):
        n = min(k, m)
        G = Fv[:, :n] - X[:, :n]
        Hm[:, 1 : n + 1, 1 : n + 1] = (
            torch.bmm(G, G.transpose(1, 2)) + lam * torch.eye(n, device=x0.device)[None]
        )
        al = torch.linalg.solve(Hm[:, : n + 1, : n + 1], y[:, : n + 1])[:, 1 : n + 1, 0]
        X[:, k % m] = (
            beta * (al[:, None] @ Fv[:, :n])[:, 0] + (1 - beta) * (al[:, None] @ X[:, :n])[:, 0]
        )
        Fv[:, k % m] = f(X[:, k % m].view_as(x0)).view(b, -1)
        res.append((Fv[:, k % m] - X[:, k % m]).norm().item() / (1e-5 + Fv[:, k % m].norm().item()))
    return X[:, k % m].view_as(x0), res


class DEQ(nn.Module):
    def __init__(s, f):
        super().__init__()
        s.f = f

    def forward(s, x):
        with torch.no_grad():
            z, s.r = anderson(lambda z: s.f(z, x), torch.zeros_like(x))
        z = s.f(z, x)
        z0 = z.clone().detach().requires_grad_()
        f0 = s.f(z0, x)

        def hook(g):
            return anderson(lambda y: autograd.grad(f0, z0, y, retain_graph=True)[0] + g, g)[0]

        if z.requires_grad:
            z.register_hook(hook)
        return z


net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    DEQ(Cell()),
    nn.BatchNorm2d(32),
    nn.AvgPool2d(8),
    nn.Flatten(),
    nn.Linear(32 * 9, 10),
).cuda()
opt = torch.optim.Adam(net.parameters(), 1e-3)
for it in range(3):
    L = F.cross_entropy(net(torch.randn(8, 3, 24, 24).cuda()), torch.randint(0, 10, (8,)).cuda())
    opt.zero_grad()
    L.backward()
    opt.step()
