"""Embedding bags with offsets (sum, mean, max), SparseAdam and Adagrad, interactions by bmm."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class DLRM(nn.Module):
    def __init__(s, ns=(20000, 5000, 800, 60), d=32):
        super().__init__()
        s.e = nn.ModuleList(
            [
                nn.EmbeddingBag(
                    n, d, mode=("sum", "mean")[i % 2], sparse=True, include_last_offset=True
                )
                for i, n in enumerate(ns)
            ]
        )
        s.bot = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, d), nn.ReLU())
        k = len(ns) + 1
        s.top = nn.Sequential(nn.Linear(d + k * (k - 1) // 2, 128), nn.ReLU(), nn.Linear(128, 1))
        s.mx = nn.EmbeddingBag(1000, d, mode="max")

    def forward(s, x, idx, off):
        b = s.bot(x)
        v = [b] + [e(i, o) for e, i, o in zip(s.e, idx, off)]
        v[1] = v[1] + s.mx(idx[2] % 1000, off[2])[: b.shape[0]]
        T = torch.stack(v, 1)
        Z = T @ T.transpose(1, 2)
        li, lj = torch.tril_indices(T.shape[1], T.shape[1], -1, device=x.device)
        return s.top(torch.cat([b, Z[:, li, lj]], 1)).squeeze(1)


m = DLRM()
m.mx.include_last_offset = True
m.cuda()
so = torch.optim.SparseAdam([p for e in m.e for p in e.parameters()], 1e-3)
do = torch.optim.Adagrad([*m.bot.parameters(), *m.top.parameters(), *m.mx.parameters()], 0.01)
for it in range(4):
    B = 256
    x = torch.rand(B, 13)
    idx, off = [], []
    for n in (20000, 5000, 800, 60):
        L = torch.randint(1, 6, (B,))
        o = torch.cat([torch.zeros(1, dtype=torch.long), L.cumsum(0)])
        off.append(o.cuda())
        idx.append(torch.randint(0, n, (int(o[-1]),)).cuda())
    y = torch.randint(0, 2, (B,)).float().cuda()
    L = nn.functional.binary_cross_entropy_with_logits(m(x.cuda(), idx, off), y)
    so.zero_grad()
    do.zero_grad()
    L.backward()
    so.step()
    do.step()
