"""Meta-learning: inner steps by functional_call, and gradients of gradients."""

import torch
from torch import nn
from torch.func import functional_call

dev = "cuda"
net = nn.Sequential(
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
).to(dev)
meta = torch.optim.AdamW(net.parameters(), lr=1e-3)
lossf = nn.CrossEntropyLoss()
for it in range(3):
    meta.zero_grad()
    total = 0.0
    for task in range(4):
        xs, ys = torch.randn(64, 256, device=dev), torch.randint(0, 10, (64,), device=dev)
        xq, yq = torch.randn(128, 256, device=dev), torch.randint(0, 10, (128,), device=dev)
        fast = dict(net.named_parameters())
        for _ in range(3):
            l = lossf(functional_call(net, fast, (xs,)), ys)
            g = torch.autograd.grad(l, list(fast.values()), create_graph=True)
            fast = {k: p - 0.01 * gg for (k, p), gg in zip(fast.items(), g)}
        lq = lossf(functional_call(net, fast, (xq,)), yq)
        (lq / 4).backward()
        total += lq.item()
    torch.nn.utils.clip_grad_value_(net.parameters(), 1.0)
    meta.step()
    print(total)
