"""DINO: student and averaged teacher, crops of two sizes, centring, a weight-normed head."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Blk(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.n1 = nn.LayerNorm(d)
        s.a = nn.MultiheadAttention(d, h, batch_first=True, dropout=0.0)
        s.n2 = nn.LayerNorm(d)
        s.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(s, x):
        y = s.n1(x)
        x = x + s.a(y, y, y, need_weights=False)[0]
        return x + s.m(s.n2(x))


class ViT(nn.Module):
    def __init__(s, d=128, h=4, n=3):
        super().__init__()
        s.p = nn.Conv2d(3, d, 8, 8)
        s.c = nn.Parameter(torch.zeros(1, 1, d))
        s.pos = nn.Parameter(torch.randn(1, 65, d) * 0.02)
        s.b = nn.Sequential(*[Blk(d, h) for _ in range(n)])
        s.n = nn.LayerNorm(d)

    def forward(s, x):
        x = s.p(x)
        h, w = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2)
        pos = s.pos[:, 1:]
        if h * w != 64:
            pos = (
                F.interpolate(
                    pos.reshape(1, 8, 8, -1).permute(0, 3, 1, 2), size=(h, w), mode="bicubic"
                )
                .permute(0, 2, 3, 1)
                .reshape(1, h * w, -1)
            )
        x = torch.cat((s.c.expand(len(x), -1, -1), x + pos), 1)
        x[:, 0] += s.pos[:, 0]
        return s.n(s.b(x))[:, 0]


class Head(nn.Module):
    def __init__(s, d=128, o=2048):
        super().__init__()
        s.m = nn.Sequential(nn.Linear(d, 256), nn.GELU(), nn.Linear(256, 64))
        s.l = nn.utils.weight_norm(nn.Linear(64, o, bias=False))
        s.l.weight_g.data.fill_(1)
        s.l.weight_g.requires_grad = False

    def forward(s, x):
        return s.l(F.normalize(s.m(x), dim=-1))


class Wrap(nn.Module):
    def __init__(s, b, h):
        super().__init__()
        s.b, s.h = b, h

    def forward(s, xs):
        idx = torch.cumsum(
            torch.unique_consecutive(torch.tensor([x.shape[-1] for x in xs]), return_counts=True)[
                1
            ],
            0,
        )
        st = 0
        out = torch.empty(0, device=xs[0].device)
        for e in idx:
            out = torch.cat((out, s.b(torch.cat(xs[st:e]))))
            st = e
        return s.h(out)


stu = Wrap(ViT(), Head()).cuda()
tea = Wrap(ViT(), Head()).cuda()
tea.load_state_dict(stu.state_dict())
for p in tea.parameters():
    p.requires_grad = False
center = torch.zeros(1, 2048, device="cuda")
reg, no = [], []
for n, p in stu.named_parameters():
    if p.requires_grad:
        (no if n.endswith(".bias") or p.ndim == 1 else reg).append(p)
opt = torch.optim.AdamW([{"params": reg}, {"params": no, "weight_decay": 0.0}])
sc = torch.amp.GradScaler()
for it in range(4):
    xs = [torch.randn(4, 3, 64, 64).cuda(non_blocking=True) for _ in range(2)] + [
        torch.randn(4, 3, 32, 32).cuda(non_blocking=True) for _ in range(6)
    ]
    with torch.autocast("cuda"):
        t = tea(xs[:2])
        s = stu(xs)
        so = (s / 0.1).chunk(8)
        to = F.softmax((t - center) / 0.04, -1).detach().chunk(2)
        L = 0
        n = 0
        for i, q in enumerate(to):
            for v in range(8):
                if v != i:
                    L = L + torch.sum(-q * F.log_softmax(so[v], -1), -1).mean()
                    n += 1
        L = L / n
    with torch.no_grad():
        center = center * 0.9 + t.mean(0, keepdim=True) * 0.1
    if not torch.isfinite(L):
        raise SystemExit(1)
    opt.zero_grad()
    sc.scale(L).backward()
    sc.unscale_(opt)
    norms = []
    for n_, p in stu.named_parameters():
        if p.grad is not None:
            pn = p.grad.data.norm(2)
            norms.append(pn.item())
            c = 3.0 / (pn + 1e-6)
            if c < 1:
                p.grad.data.mul_(c)
    if it < 1:
        for n_, p in stu.named_parameters():
            if "h.l" in n_:
                p.grad = None
    sc.step(opt)
    sc.update()
    with torch.no_grad():
        for a, b in zip(stu.parameters(), tea.parameters()):
            b.data.mul_(0.996).add_((1 - 0.996) * a.detach().data)
