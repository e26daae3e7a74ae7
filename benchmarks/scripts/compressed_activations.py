"""saved_tensors_hooks: activations kept in bfloat16 or on the host, checkpoints inside and out."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def pack(tensor):
    if tensor.dtype is torch.float32 and tensor.dim() >= 3:
        return tensor.dtype, tensor.to(torch.bfloat16)
    return tensor.dtype, tensor


def unpack(packed):
    dtype, tensor = packed
    return tensor.to(dtype)


def to_host(tensor):
    return tensor.device, tensor.to("cpu") if tensor.numel() > 100_000 else tensor


def from_host(packed):
    device, tensor = packed
    return tensor.to(device, non_blocking=True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attend = (
            nn.LayerNorm(width),
            nn.MultiheadAttention(width, 8, batch_first=True),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


device = "cuda"
first = nn.Sequential(*(Block(256) for _ in range(4))).to(device)
second = nn.ModuleList(Block(256) for _ in range(3)).to(device)
head = nn.Linear(256, 1000).to(device)
everything = [*first.parameters(), *second.parameters(), *head.parameters()]
optimizer = torch.optim.NAdam(everything, lr=1e-3)
for step in range(3):
    x = torch.randn(8, 196, 256, device=device)
    y = torch.randint(0, 1000, (8,), device=device)
    if step == 0:
        with saved_tensors_hooks(pack, unpack):
            hidden = first(x)
    elif step == 1:
        hidden = checkpoint_sequential(first, 2, x, use_reentrant=False)
    else:
        with saved_tensors_hooks(to_host, from_host):
            hidden = first(x)
    for n, block in enumerate(second):
        hidden = checkpoint(block, hidden, use_reentrant=n == 1, preserve_rng_state=n != 2)
    loss = F.cross_entropy(head(hidden.mean(1)), y)
    optimizer.zero_grad()
    loss.backward()
    total = torch.sqrt(sum(p.grad.pow(2).sum() for p in everything if p.grad is not None))
    scale = torch.clamp(1.0 / (total + 1e-6), max=1.0)
    for p in everything:
        if p.grad is not None:
            p.grad.mul_(scale)
    optimizer.step()
    print(step, float(loss), float(total), torch.cuda.max_memory_allocated() > 0)
