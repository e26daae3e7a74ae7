"""torchdiffeq: a neural differential equation whose backward solves another.

Requires: torchdiffeq
"""

import torch
from torch import nn
from torchdiffeq import odeint_adjoint


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 32))

    def forward(self, t, y):
        return self.net(y)


field, head = Field().cuda(), nn.Linear(32, 10).cuda()
opt = torch.optim.RMSprop([*field.parameters(), *head.parameters()], 1e-3)
for i in range(3):
    x = torch.randn(512, 32, device="cuda")
    y = torch.randint(0, 10, (512,), device="cuda")
    times = torch.linspace(0, 1, 5, device="cuda")
    z = odeint_adjoint(field, x, times, method="rk4")[-1]
    loss = nn.functional.cross_entropy(head(z), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
