"""A radiance field: coarse and fine samples along rays, searchsorted, gather, cumprod."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def enc(x, L):
    f = 2.0 ** torch.arange(L, device=x.device)
    y = x[..., None] * f
    return torch.cat([x, torch.sin(y).flatten(-2), torch.cos(y).flatten(-2)], -1)


class N(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Sequential(
            nn.Linear(63, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
        )
        s.b = nn.Sequential(nn.Linear(319, 256), nn.ReLU(), nn.Linear(256, 257))
        s.c = nn.Sequential(nn.Linear(283, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(s, p, d):
        e = enc(p, 10)
        h = s.a(e)
        h = s.b(torch.cat([h, e], -1))
        return torch.sigmoid(s.c(torch.cat([h[..., 1:], enc(d, 4)], -1))), F.relu(h[..., 0])


dev = torch.device("cuda")
m, fine = N().to(dev), N().to(dev)
o = torch.optim.Adam([*m.parameters(), *fine.parameters()], 5e-4)
sch = torch.optim.lr_scheduler.ExponentialLR(o, 0.99)


def render(net, ro, rd, z):
    p = ro[:, None] + rd[:, None] * z[..., None]
    c, s = net(p, rd[:, None].expand_as(p))
    dl = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
    al = 1 - torch.exp(-s * dl)
    T = torch.cumprod(torch.cat([torch.ones_like(al[:, :1]), 1 - al + 1e-10], -1), -1)[:, :-1]
    w = al * T
    return (w[..., None] * c).sum(1), w


def sample(b, w, n):
    w = w + 1e-5
    pdf = w / w.sum(-1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[:, :1]), cdf], -1)
    u = torch.rand(*cdf.shape[:-1], n, device=w.device)
    i = torch.searchsorted(cdf, u, right=True)
    lo = (i - 1).clamp(min=0)
    hi = i.clamp(max=cdf.shape[-1] - 1)
    g = torch.stack([lo, hi], -1)
    cg = torch.gather(cdf[:, None].expand(-1, n, -1), 2, g)
    bg = torch.gather(b[:, None].expand(-1, n, -1), 2, g.clamp(max=b.shape[-1] - 1))
    dn = cg[..., 1] - cg[..., 0]
    dn = torch.where(dn < 1e-5, torch.ones_like(dn), dn)
    t = (u - cg[..., 0]) / dn
    return bg[..., 0] + t * (bg[..., 1] - bg[..., 0])


for i in range(3):
    ro = torch.randn(512, 3, device=dev)
    rd = F.normalize(torch.randn(512, 3, device=dev), dim=-1)
    tgt = torch.rand(512, 3, device=dev)
    z = torch.linspace(2, 6, 64, device=dev).expand(512, 64)
    z = z + torch.rand_like(z) * 0.05
    rgb, w = render(m, ro, rd, z)
    zs = sample(0.5 * (z[:, 1:] + z[:, :-1]), w[:, 1:-1].detach(), 64)
    z2, _ = torch.sort(torch.cat([z, zs], -1), -1)
    rgb2, _ = render(fine, ro, rd, z2)
    loss = F.mse_loss(rgb, tgt) + F.mse_loss(rgb2, tgt)
    o.zero_grad()
    loss.backward()
    o.step()
    sch.step()
    psnr = -10 * torch.log10(loss.detach())
    print(psnr.item())
