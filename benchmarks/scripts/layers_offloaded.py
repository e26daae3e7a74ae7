"""Layers kept on the host and brought to the GPU one at a time, forward and backward; reentrant and
non-reentrant checkpoints; saved tensors offloaded."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(0)
dev = "cuda:0"


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Offloaded(nn.Module):
    def __init__(self, d=512, n=6):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))

    def forward(self, x):
        for block in self.blocks:
            block.to(dev)
            x = block(x)
            block.to("cpu")
        return x


model = Offloaded()
with torch.no_grad():
    for _ in range(2):
        out = model(torch.randn(64, 512, device=dev))
print(out.shape, torch.cuda.memory_allocated())
del out
blocks = nn.Sequential(*[Block(512) for _ in range(6)]).to(dev)
optimizer = torch.optim.Adagrad(blocks.parameters(), lr=1e-2)
for step, reentrant in enumerate((True, False, True, False)):
    x = torch.randn(256, 512, device=dev, requires_grad=reentrant)
    h = x
    for i, block in enumerate(blocks):
        h = checkpoint(block, h, use_reentrant=reentrant) if i % 2 else block(h)
    h.pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
out = checkpoint_sequential(blocks, 3, torch.randn(256, 512, device=dev), use_reentrant=False)
out.sum().backward()
optimizer.step()
optimizer.zero_grad()
with save_on_cpu(pin_memory=True):
    loss = blocks(torch.randn(256, 512, device=dev)).mean()
loss.backward()
optimizer.step()
print(loss.item())
