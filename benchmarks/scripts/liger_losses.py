"""Liger's modules and losses by hand: RMSNorm, LayerNorm, GEGLU, KL divergence, chunked linear loss."""

import torch
from liger_kernel.transformers import (
    LigerFusedLinearCrossEntropyLoss,
    LigerKLDIVLoss,
    LigerLayerNorm,
    LigerRMSNorm,
)
from liger_kernel.transformers.functional import liger_geglu
from torch import nn


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = LigerRMSNorm(size)
        self.gate = nn.Linear(size, 4 * size, bias=False)
        self.up = nn.Linear(size, 4 * size, bias=False)
        self.down = nn.Linear(4 * size, size, bias=False)

    def forward(self, x):
        hidden = self.norm(x)
        return x + self.down(liger_geglu(self.gate(hidden), self.up(hidden)))


class Net(nn.Module):
    def __init__(self, size=512, words=24000):
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(3)))
        self.norm = LigerLayerNorm(size)
        self.head = nn.Linear(size, words, bias=False)

    def forward(self, ids):
        return self.norm(self.blocks(self.embed(ids)))


net = Net().to("cuda")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
divergence, fused = LigerKLDIVLoss(reduction="batchmean"), LigerFusedLinearCrossEntropyLoss()
for step in range(4):
    ids = torch.zeros(8, 256, dtype=torch.long, device="cuda")
    hidden = net(ids).flatten(0, 1)
    if step % 2:
        loss = fused(net.head.weight, hidden, ids.flatten())
    else:
        said = net.head(hidden).log_softmax(-1)
        loss = divergence(said, torch.full_like(said, 1 / said.shape[-1]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
