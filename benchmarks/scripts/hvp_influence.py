"""Hessian-vector products three ways, conjugate gradients, and a head's whole Hessian."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jvp

torch.manual_seed(0)
m = nn.Sequential(
    nn.Linear(40, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 5)
).cuda()
x, y = torch.randn(64, 40).cuda(), torch.randint(0, 5, (64,)).cuda()
ps = list(m.parameters())
opt = torch.optim.Adam(ps)
for _ in range(2):
    L = F.cross_entropy(m(x), y)
    opt.zero_grad()
    L.backward()
    opt.step()
g = torch.autograd.grad(F.cross_entropy(m(x), y), ps, create_graph=True)
v = [torch.randn_like(p) for p in ps]
h1 = torch.autograd.grad(g, ps, v, retain_graph=True)
del g, h1
pd = {k: p.detach() for k, p in m.named_parameters()}


def loss(p, x=x, y=y):
    return F.cross_entropy(functional_call(m, p, (x,)), y)


vd = dict(zip(pd, v))
_, h2 = jvp(grad(loss), (pd,), (vd,))
r = {k: t.clone() for k, t in vd.items()}
s = {k: torch.zeros_like(t) for k, t in vd.items()}
d = {k: t.clone() for k, t in r.items()}
for _ in range(3):
    hd = jvp(grad(loss), (pd,), (d,))[1]
    rr = sum((t * t).sum() for t in r.values())
    al = rr / sum((d[k] * (hd[k] + 0.01 * d[k])).sum() for k in d)
    for k in d:
        s[k] = s[k] + al * d[k]
        r[k] = r[k] - al * (hd[k] + 0.01 * d[k])
    be = sum((t * t).sum() for t in r.values()) / rr
    d = {k: r[k] + be * d[k] for k in d}
RR = torch.randn(32, 64, device="cuda")
head = m[4].weight.detach()
H = hessian(lambda w: F.cross_entropy(F.linear(torch.tanh(x[:, :32] @ RR), w), y))(head)
