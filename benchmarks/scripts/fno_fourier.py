"""A Fourier neural operator: real transforms in two dimensions, complex weights, einsum."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Spec(nn.Module):
    def __init__(s, c, m):
        super().__init__()
        s.m = m
        s.w1 = nn.Parameter(torch.rand(c, c, m, m, dtype=torch.cfloat) / c**2)
        s.w2 = nn.Parameter(torch.rand(c, c, m, m, dtype=torch.cfloat) / c**2)

    def forward(s, x):
        B, C, H, W = x.shape
        f = torch.fft.rfft2(x)
        o = torch.zeros(B, C, H, W // 2 + 1, dtype=torch.cfloat, device=x.device)
        m = s.m
        o[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], s.w1)
        o[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], s.w2)
        return torch.fft.irfft2(o, s=(H, W))


class FNO(nn.Module):
    def __init__(s, c=32, m=12):
        super().__init__()
        s.up = nn.Linear(3, c)
        s.k = nn.ModuleList([Spec(c, m) for _ in range(3)])
        s.w = nn.ModuleList([nn.Conv2d(c, c, 1) for _ in range(3)])
        s.dn = nn.Sequential(nn.Linear(c, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(s, x):
        B, H, W, _ = x.shape
        gx = torch.linspace(0, 1, H, device=x.device).view(1, H, 1, 1).repeat(B, 1, W, 1)
        gy = torch.linspace(0, 1, W, device=x.device).view(1, 1, W, 1).repeat(B, H, 1, 1)
        x = s.up(torch.cat((x, gx, gy), -1)).permute(0, 3, 1, 2)
        x = F.pad(x, [0, 8, 0, 8])
        for k, w in zip(s.k, s.w):
            x = F.gelu(k(x) + w(x))
        return s.dn(x[..., :-8, :-8].permute(0, 2, 3, 1))


m = FNO().cuda()
opt = torch.optim.Adam(m.parameters(), 1e-3, weight_decay=1e-4)
sch = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
print(sum(p.numel() * (2 if p.is_complex() else 1) for p in m.parameters()))
for it in range(4):
    x, y = torch.randn(6, 64, 64, 1).cuda(), torch.randn(6, 64, 64, 1).cuda()
    o = m(x)
    L = ((o - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()
    opt.zero_grad()
    L.backward()
    opt.step()
    sch.step()
