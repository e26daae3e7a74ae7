"""Momentum contrast: a lazy encoder, its slow copy, and a queue of keys."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Enc(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.GroupNorm(8, 32),
            nn.Mish(),
            nn.Conv2d(32, 64, 3, 2, 1, groups=2),
            nn.InstanceNorm2d(64, affine=True),
            nn.PReLU(64),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.BatchNorm2d(128),
            nn.Hardswish(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(256),
        )

    def forward(s, x):
        return F.normalize(s.f(x), dim=-1)


q = Enc()
q(torch.zeros(2, 3, 32, 32))
q = q.cuda()
k = copy.deepcopy(q)
for p in k.parameters():
    p.requires_grad = False
queue = F.normalize(torch.randn(256, 4096, device="cuda"), dim=0)
ptr = 0
opt = torch.optim.SGD(q.parameters(), 0.03, momentum=0.9, foreach=False)
for it in range(4):
    a, b = torch.randn(64, 3, 32, 32).cuda(), torch.randn(64, 3, 32, 32).cuda()
    with torch.no_grad():
        for pq, pk in zip(q.parameters(), k.parameters()):
            pk.data = pk.data * 0.99 + pq.data * 0.01
        idx = torch.randperm(64, device="cuda")
        kk = k(b[idx])[torch.argsort(idx)]
    qq = q(a)
    pos = torch.einsum("nc,nc->n", qq, kk).unsqueeze(-1)
    neg = torch.einsum("nc,ck->nk", qq, queue.clone().detach())
    logits = torch.cat([pos, neg], 1) / 0.07
    loss = F.cross_entropy(logits, torch.zeros(64, dtype=torch.long, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    queue[:, ptr : ptr + 64] = kk.T
    ptr = (ptr + 64) % 4096
    acc = (logits.topk(5, 1)[1] == 0).any(1).float().mean().item()
    print(loss.item(), acc)
