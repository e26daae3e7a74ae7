"""A vision transformer: scaled dot-product attention, bf16 autocast, fused AdamW, mixup."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.out(x.transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, size=64, patch=8, dim=256, depth=4, heads=4, classes=100):
        super().__init__()
        self.patches = nn.Linear(3 * patch * patch, dim)
        self.patch = patch
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        p = self.patch
        x = x.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.patches(x)], 1) + self.position
        return self.head(self.norm(self.layers(x))[:, 0])


model = ViT().cuda()
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
    lr=1e-3,
    fused=True,
)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 * (1 + math.cos(s / 10)))
for step in range(3):
    x = torch.randn(48, 3, 64, 64, device="cuda")
    y = F.one_hot(torch.randint(0, 100, (48,), device="cuda"), 100).float()
    mix = torch.distributions.Beta(0.8, 0.8).sample().item()
    order = torch.randperm(48, device="cuda")
    x, y = mix * x + (1 - mix) * x[order], mix * y + (1 - mix) * y[order]
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = torch.sum(-y * F.log_softmax(model(x).float(), dim=-1), dim=-1).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print(step, loss.item(), torch.cuda.max_memory_allocated() // 2**20)
