"""A small GPT by hand: everything is made on the default device, tied weights, fused AdamW."""

import torch
import torch.nn as nn

torch.set_default_device("cuda")
torch.set_float32_matmul_precision("high")
torch.manual_seed(3)


class Attn(nn.Module):
    def __init__(s, d, h):
        super().__init__()
        s.qkv = nn.Linear(d, 3 * d)
        s.o = nn.Linear(d, d)
        s.h = h
        s.register_buffer("mask", torch.tril(torch.ones(128, 128)).bool())

    def forward(s, x):
        B, T, C = x.shape
        q, k, v = s.qkv(x).view(B, T, 3, s.h, C // s.h).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1)) / (C // s.h) ** 0.5
        a = a.masked_fill(~s.mask[:T, :T], float("-inf")).softmax(-1)
        return s.o(
            (torch.nn.functional.dropout(a, 0.1, s.training) @ v).transpose(1, 2).reshape(B, T, C)
        )


class Bl(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.a = Attn(d, 8)
        s.n1 = nn.LayerNorm(d)
        s.n2 = nn.LayerNorm(d)
        s.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(0.1))

    def forward(s, x):
        x = x + s.a(s.n1(x))
        return x + s.m(s.n2(x))


emb = nn.Embedding(1000, 256)
pos = nn.Parameter(torch.zeros(1, 128, 256))
blocks = nn.ModuleList(Bl(256) for _ in range(3))
head = nn.Linear(256, 1000, bias=False)
head.weight = emb.weight
ps = [*emb.parameters(), pos, *blocks.parameters()]
opt = torch.optim.AdamW(ps, lr=3e-4, fused=True)
for it in range(4):
    ids = torch.randint(0, 1000, (12, 129))
    x, y = ids[:, :-1], ids[:, 1:]
    h = emb(x) + pos
    for b in blocks:
        h = b(h)
    loss = nn.functional.cross_entropy(head(h).reshape(-1, 1000), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    g = nn.utils.clip_grad_norm_(ps, 1.0)
    opt.step()
    print(it, loss.item(), g.item(), torch.cuda.memory_allocated() // 2**20)
