"""Parameters that are cloned and pruned with their optimizer state, as Gaussian splatting does."""

import torch
from torch import nn

torch.manual_seed(0)
N = 4000
P = {
    k: nn.Parameter(torch.randn(N, *s).cuda())
    for k, s in dict(
        xyz=(3,), f_dc=(1, 3), f_rest=(15, 3), opacity=(1,), scaling=(3,), rotation=(4,)
    ).items()
}
optimizer = torch.optim.Adam(
    [{"params": [p], "lr": 1e-3, "name": k} for k, p in P.items()], lr=0.0, eps=1e-15
)


def swap(fn_param, fn_state):
    for g in optimizer.param_groups:
        old = g["params"][0]
        st = optimizer.state.get(old)
        new = nn.Parameter(fn_param(old).requires_grad_(True))
        if st is not None:
            st["exp_avg"] = fn_state(st["exp_avg"])
            st["exp_avg_sq"] = fn_state(st["exp_avg_sq"])
            del optimizer.state[old]
            optimizer.state[new] = st
        g["params"][0] = new
        P[g["name"]] = new


acc = torch.zeros(N, 1, device="cuda")
den = torch.zeros(N, 1, device="cuda")
for it in range(1, 9):
    cam = torch.randn(3, 4, device="cuda")
    sc = P["scaling"].exp()
    q = nn.functional.normalize(P["rotation"])
    op = P["opacity"].sigmoid()
    r, x, y, z = q.unbind(1)
    R = torch.stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y - r * z),
            2 * (x * z + r * y),
            2 * (x * y + r * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z - r * x),
            2 * (x * z - r * y),
            2 * (y * z + r * x),
            1 - 2 * (x * x + y * y),
        ],
        1,
    ).view(-1, 3, 3)
    L = R * sc[:, None]
    cov = L @ L.transpose(1, 2)
    p = torch.cat([P["xyz"], torch.ones_like(P["xyz"][:, :1])], 1) @ cam.T
    col = torch.cat([P["f_dc"], P["f_rest"]], 1).mean(1)
    order = p[:, 2].argsort()
    w = op * torch.exp(-cov.diagonal(dim1=1, dim2=2).sum(1, keepdim=True))
    w, col = w[order], col[order]
    T = torch.cumprod(1 - w.clamp(max=0.99) + 1e-10, 0)
    img = (T * w * col).sum(0)
    loss = (img - 0.5).abs().mean() + 1e-3 * (p**2).mean()
    loss.backward()
    with torch.no_grad():
        acc += P["xyz"].grad.norm(dim=-1, keepdim=True)
        den += 1
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if it % 3 == 0:
            g = acc / den
            g[g.isnan()] = 0.0
            chosen = (torch.arange(len(g)) % 4 == 0).cuda()
            swap(
                lambda t, chosen=chosen: torch.cat([t, t[chosen]]),
                lambda s, chosen=chosen: torch.cat([s, torch.zeros_like(s[chosen])]),
            )
            keep = (torch.arange(len(P["xyz"])) % 7 != 0).cuda()
            swap(lambda t, keep=keep: t[keep], lambda s, keep=keep: s[keep])
            n = len(P["xyz"])
            acc = torch.zeros(n, 1, device="cuda")
            den = torch.zeros(n, 1, device="cuda")
            torch.cuda.empty_cache()
    print(it, len(P["xyz"]), loss.item())
