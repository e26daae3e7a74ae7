"""Forward-mode derivatives, Jacobians and gradients of each sample, by torch.func."""

import torch
from torch import nn
from torch.autograd import forward_ad as fw
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

m = nn.Sequential(
    nn.Linear(8, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 8)
).cuda()
optimizer = torch.optim.Adam(m.parameters(), 1e-3)
for i in range(3):
    x = torch.randn(128, 8).cuda()
    v = torch.randn_like(x)
    s, sv = jvp(m, (x,), (v,))
    loss = (0.5 * (s * v).sum(1) ** 2 + (v * sv).sum(1)).mean()
    xr = x.clone().requires_grad_()
    y = m(xr)
    g = torch.autograd.grad((y * v).sum(), xr, create_graph=True)[0]
    loss = loss + ((g * v).sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
p = dict(m.named_parameters())


def f(p, x):
    return functional_call(m, p, (x,)).pow(2).sum()


pg = vmap(grad(f), in_dims=(None, 0))(p, x)
print(sum(t.flatten(1).pow(2).sum(1) for t in pg.values()).sqrt().mean().item())
J = vmap(jacrev(lambda z: m(z)))(x[:16])
H = vmap(hessian(lambda z: m(z).sum()))(x[:8])
print(J.shape, H.shape)

with fw.dual_level():
    d = fw.make_dual(x, v)
    print(fw.unpack_dual(m(d)).tangent.shape)
