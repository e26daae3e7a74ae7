"""A translator of GRU cells with additive attention, teacher forcing, and batches of many lengths."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
random.seed(0)


class Enc(nn.Module):
    def __init__(s, v, d):
        super().__init__()
        s.e = nn.Embedding(v, d, padding_idx=0)
        s.r = nn.GRUCell(d, d)

    def forward(s, x):
        e = s.e(x)
        h = torch.zeros(x.size(0), e.size(2), device=x.device)
        out = []
        for t in range(x.size(1)):
            h = s.r(e[:, t], h)
            out.append(h)
        return torch.stack(out, 1), h


class Att(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.w = nn.Linear(2 * d, d)
        s.v = nn.Parameter(torch.rand(d))

    def forward(s, h, enc, mask):
        a = torch.tanh(s.w(torch.cat([h.unsqueeze(1).expand(-1, enc.size(1), -1), enc], 2))) @ s.v
        a = a.masked_fill(~mask, float("-inf")).softmax(1)
        return torch.bmm(a.unsqueeze(1), enc).squeeze(1)


class Dec(nn.Module):
    def __init__(s, v, d):
        super().__init__()
        s.e = nn.Embedding(v, d)
        s.a = Att(d)
        s.r = nn.GRUCell(2 * d, d)
        s.o = nn.Linear(d, v)

    def forward(s, y, h, enc, mask, tf):
        inp = y[:, 0]
        outs = []
        for t in range(1, y.size(1)):
            c = s.a(h, enc, mask)
            h = s.r(torch.cat([s.e(inp), c], 1), h)
            o = s.o(h)
            outs.append(o)
            inp = y[:, t] if random.random() < tf else o.argmax(1)
        return torch.stack(outs, 1)


V, D = 6000, 256
data = [
    (torch.randint(1, V, (random.randint(6, 30),)), torch.randint(1, V, (random.randint(6, 30),)))
    for _ in range(96)
]


def coll(b):
    return pad_sequence([x for x, _ in b], True), pad_sequence([y for _, y in b], True)


dl = torch.utils.data.DataLoader(data, 32, shuffle=True, collate_fn=coll, pin_memory=True)
enc, dec = Enc(V, D).cuda(), Dec(V, D).cuda()
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e-3)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
ce = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
for ep in range(2):
    run = 0.0
    for x, y in dl:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        e, h = enc(x)
        o = dec(y, h, e, x != 0, 0.5)
        loss = ce(o.reshape(-1, V), y[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*enc.parameters(), *dec.parameters()], 1.0)
        opt.step()
        run += loss.item()
    sched.step(run)
    print(ep, run)
