"""A mixture of experts: tokens are routed by top-k, gathered, and scattered back."""

import torch
import torch.nn.functional as F
from torch import nn


class Mixture(nn.Module):
    def __init__(self, width=192, experts=4, k=2):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
                for _ in range(experts)
            ]
        )
        self.k = k

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(flat).softmax(-1).topk(self.k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(flat[rows]) * weight[rows, slots, None])
        return x + out.view_as(x)


model = nn.Sequential(nn.Embedding(2000, 192), Mixture(), Mixture(), nn.Linear(192, 2000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    ids = torch.randint(0, 2000, (8, 64), device="cuda")
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
