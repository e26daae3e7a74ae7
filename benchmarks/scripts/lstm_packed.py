"""A bidirectional LSTM over packed sequences without cuDNN, attention over what it gives."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence as pk
from torch.nn.utils.rnn import pad_packed_sequence as up
from torch.nn.utils.rnn import pad_sequence

torch.backends.cudnn.enabled = False


class T(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(5000, 128, padding_idx=0)
        s.l = nn.LSTM(128, 128, 2, batch_first=True, bidirectional=True, dropout=0.2)
        s.a = nn.Linear(256, 1)
        s.o = nn.Linear(256, 2)

    def forward(s, x, n):
        h, _ = s.l(pk(s.e(x), n, batch_first=True, enforce_sorted=False))
        h, _ = up(h, batch_first=True)
        w = (
            s.a(h)
            .squeeze(-1)
            .masked_fill(torch.arange(h.shape[1], device=h.device) >= n.to(h.device)[:, None], -1e9)
            .softmax(-1)
        )
        return s.o((w[..., None] * h).sum(1))


m = T().cuda()
o = torch.optim.Adagrad(m.parameters())
for i in range(3):
    n = torch.tensor([40, 25, 31, 12, 38, 9, 17, 22])
    x = pad_sequence([torch.randint(1, 5000, (int(k),)) for k in n], batch_first=True).cuda()
    l = nn.functional.cross_entropy(m(x, n), torch.randint(2, (8,)).cuda())
    o.zero_grad()
    l.backward()
    o.step()
    print(l.item())
