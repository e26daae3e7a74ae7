"""A neural ODE: Runge-Kutta with the adjoint as an autograd function, and through the solver."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class Fn(nn.Module):
    def __init__(s, d=64):
        super().__init__()
        s.n = nn.Sequential(
            nn.Linear(d + 1, 256),
            nn.Softplus(),
            nn.Linear(256, 256),
            nn.Softplus(),
            nn.Linear(256, d),
        )
        s.nfe = 0

    def forward(s, t, y):
        s.nfe += 1
        return s.n(torch.cat([y, t.expand(y.shape[0], 1)], 1))


def rk4(f, t, dt, y):
    k1 = f(t, y)
    k2 = f(
        t + dt / 2,
        tuple(a + dt / 2 * b for a, b in zip(y, k1)) if isinstance(y, tuple) else y + dt / 2 * k1,
    )
    k3 = f(
        t + dt / 2,
        tuple(a + dt / 2 * b for a, b in zip(y, k2)) if isinstance(y, tuple) else y + dt / 2 * k2,
    )
    k4 = f(
        t + dt, tuple(a + dt * b for a, b in zip(y, k3)) if isinstance(y, tuple) else y + dt * k3
    )
    return (
        tuple(a + dt / 6 * (p + 2 * q + 2 * r + u) for a, p, q, r, u in zip(y, k1, k2, k3, k4))
        if isinstance(y, tuple)
        else y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    )


class Adj(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, y0, ts, *params):
        ctx.f = f
        with torch.no_grad():
            y = y0
            for i in range(len(ts) - 1):
                y = rk4(f, ts[i], ts[i + 1] - ts[i], y)
        ctx.save_for_backward(y, ts, *params)
        return y

    @staticmethod
    def backward(ctx, g):
        y, ts, *params = ctx.saved_tensors
        f = ctx.f

        def aug(t, st):
            y, a = st[0], st[1]
            with torch.enable_grad():
                y = y.detach().requires_grad_(True)
                o = f(t, y)
                gy, *gp = torch.autograd.grad(o, (y, *params), -a, allow_unused=True)
            return (
                o.detach(),
                gy,
                *[torch.zeros_like(p) if q is None else q for p, q in zip(params, gp)],
            )

        with torch.no_grad():
            st = (y, g, *[torch.zeros_like(p) for p in params])
            for i in range(len(ts) - 1, 0, -1):
                st = rk4(aug, ts[i], ts[i - 1] - ts[i], st)
        return (None, st[1], None, *st[2:])


f = Fn().cuda()
head = nn.Linear(64, 10).cuda()
ts = torch.linspace(0, 1, 6).cuda()
opt = torch.optim.RMSprop([*f.parameters(), *head.parameters()], 1e-3, momentum=0.9)
for it in range(4):
    x, t = torch.randn(512, 64).cuda(), torch.randint(0, 10, (512,)).cuda()
    if it % 2 == 0:
        y = Adj.apply(f, x, ts, *f.parameters())
    else:
        y = x
        for i in range(5):
            y = rk4(f, ts[i], ts[i + 1] - ts[i], y)
    L = nn.functional.cross_entropy(head(y), t)
    opt.zero_grad()
    L.backward()
    opt.step()
    torch.cuda.reset_peak_memory_stats()
