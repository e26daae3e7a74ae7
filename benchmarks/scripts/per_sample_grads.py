"""Per-sample gradients by torch.func, clipped one by one as differential privacy does."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(params, x, y):
    out = functional_call(model, params, (x.unsqueeze(0),))
    return nn.functional.cross_entropy(out, y.unsqueeze(0))


for _ in range(3):
    x, y = torch.randn(64, 64, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    params = {name: p.detach() for name, p in model.named_parameters()}
    each = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    scale = (1.0 / norms.clamp(min=1e-6)).clamp(max=1.0)
    for name, p in model.named_parameters():
        clipped = (each[name] * scale.view(-1, *[1] * (each[name].dim() - 1))).mean(0)
        p.grad = clipped + 0.01 * torch.randn_like(clipped)
    optimizer.step()
    optimizer.zero_grad()
