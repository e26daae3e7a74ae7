"""A physics-informed network: derivatives by autograd, LBFGS with a closure."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
net = nn.Sequential(
    nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)
).cuda()
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, history_size=10)
points = torch.rand(4096, 2, device="cuda", requires_grad=True)


def closure():
    optimizer.zero_grad()
    u = net(points)
    du = torch.autograd.grad(u, points, torch.ones_like(u), create_graph=True)[0]
    ddu = torch.autograd.grad(du[:, 0], points, torch.ones_like(du[:, 0]), create_graph=True)[0]
    loss = (du[:, 1:] - 0.1 * ddu[:, :1]).pow(2).mean()
    loss.backward()
    return loss


for _ in range(3):
    print(optimizer.step(closure))
