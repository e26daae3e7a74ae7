"""Rows of their own lengths in jagged tensors: embedded, normalized, mapped and padded at times."""

import torch
from torch import nn

LENGTHS = (5, 170, 300, 9)
embedding = nn.Embedding(1000, 64).cuda()
wide = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)).cuda()
norm, head = nn.LayerNorm(64).cuda(), nn.Linear(64, 10).cuda()
parts = nn.ModuleList([embedding, wide, norm, head])
optimizer = torch.optim.AdamW(parts.parameters())

for step in range(3):
    rows = [torch.randint(0, 1000, (length,)) for length in LENGTHS]
    ids = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")
    x = embedding(ids)
    y = head(norm(x + wide(x)))
    padded = torch.nested.to_padded_tensor(y, 0.0) if step == 1 else None
    loss = y.values().float().logsumexp(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

values = torch.randn(sum(LENGTHS), 64, device="cuda", requires_grad=True)
offsets = torch.tensor([0, 5, 175, 475, 484], device="cuda")
given = torch.nested.nested_tensor_from_jagged(values, offsets)
(given * 2).values().sum().backward()
