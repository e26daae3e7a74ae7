"""Selective activation checkpointing, and tensors saved on the host."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

ops = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


def pol(ctx, op, *a, **k):
    return CheckpointPolicy.MUST_SAVE if op in ops else CheckpointPolicy.PREFER_RECOMPUTE


class B(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.n = nn.RMSNorm(d)
        s.a = nn.Linear(d, 4 * d)
        s.g = nn.Linear(d, 4 * d)
        s.o = nn.Linear(4 * d, d)

    def forward(s, x):
        h = s.n(x)
        return x + s.o(nn.functional.silu(s.g(h)) * s.a(h))


net = nn.ModuleList([B(512) for _ in range(6)]).cuda()
opt = torch.optim.NAdam(net.parameters())
for i in range(3):
    x = torch.randn(16, 128, 512, device="cuda", requires_grad=True)
    for b in net:
        x = checkpoint(
            b,
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, pol),
        )
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = x.sin().exp()
    y.mean().backward()
    opt.step()
    opt.zero_grad()
    print(i)
