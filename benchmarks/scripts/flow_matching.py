"""Flow matching: a bf16 transformer of images, fp32 master weights, an average, and sampling."""

import copy
import math

import torch
from torch import nn


class Block(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.n1 = nn.LayerNorm(d, elementwise_affine=False)
        s.a = nn.MultiheadAttention(d, h, batch_first=True)
        s.n2 = nn.LayerNorm(d, elementwise_affine=False)
        s.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU("tanh"), nn.Linear(4 * d, d))
        s.ada = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))

    def forward(s, x, c):
        a, b, g, a2, b2, g2 = s.ada(c).chunk(6, 1)
        h = s.n1(x) * (1 + a[:, None]) + b[:, None]
        x = x + g[:, None] * s.a(h, h, h, need_weights=False)[0]
        h = s.n2(x) * (1 + a2[:, None]) + b2[:, None]
        return x + g2[:, None] * s.m(h)


class DiT(nn.Module):
    def __init__(s, d=384, n=6):
        super().__init__()
        s.p = nn.Conv2d(4, d, 2, 2)
        s.pos = nn.Parameter(torch.zeros(1, 256, d))
        s.t = nn.Sequential(nn.Linear(256, d), nn.SiLU(), nn.Linear(d, d))
        s.y = nn.Embedding(101, d)
        s.b = nn.ModuleList(Block(d, 6) for _ in range(n))
        s.o = nn.Linear(d, 16)

    def forward(s, x, t, y):
        f = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        e = t[:, None] * f[None] * 1000
        e = torch.cat([e.cos(), e.sin()], 1)
        c = s.t(e.to(x.dtype)) + s.y(y)
        h = s.p(x).flatten(2).transpose(1, 2) + s.pos
        for b in s.b:
            h = b(h, c)
        h = s.o(h).view(x.size(0), 16, 16, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", h).reshape(x.shape)


m = DiT().cuda()
ema = copy.deepcopy(m).requires_grad_(False)
m.to(torch.bfloat16)
master = [p.detach().float().requires_grad_() for p in m.parameters()]
opt = torch.optim.AdamW(master, lr=1e-4, foreach=True)
for i in range(4):
    x1 = torch.randn(16, 4, 32, 32, device="cuda")
    x0 = torch.randn_like(x1)
    t = torch.rand(16, device="cuda").sigmoid()
    y = torch.where(
        torch.rand(16, device="cuda") < 0.1, 100, torch.randint(0, 100, (16,), device="cuda")
    )
    xt = (1 - t)[:, None, None, None] * x0 + t[:, None, None, None] * x1
    v = m(xt.bfloat16(), t, y)
    loss = (v.float() - (x1 - x0)).pow(2).mean()
    loss.backward()
    for w, p in zip(master, m.parameters()):
        w.grad = p.grad.float()
        p.grad = None
    torch.nn.utils.clip_grad_norm_(master, 1.0)
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for w, p in zip(master, m.parameters()):
            p.copy_(w)
        torch._foreach_lerp_(list(ema.parameters()), master, 0.01)
    print(i, loss.item())
with torch.no_grad():
    z = torch.randn(8, 4, 32, 32, device="cuda")
    for k in range(4):
        z = (
            z
            + ema(
                z,
                torch.full((8,), k / 4, device="cuda"),
                torch.zeros(8, dtype=torch.long, device="cuda"),
            )
            / 4
        )
print(z.shape)
