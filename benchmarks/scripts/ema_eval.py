"""An exponential moving average of the weights, evaluated between steps; best state is kept."""

import copy

import torch
from torch import nn


class EMA:
    def __init__(self, model, decay=0.999):
        self.module = copy.deepcopy(model).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.state_dict().values(), model.state_dict().values()):
            if e.dtype.is_floating_point:
                e.mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)
            else:
                e.copy_(p)


model = nn.Sequential(
    nn.Linear(256, 1024),
    nn.BatchNorm1d(1024),
    nn.SiLU(),
    nn.Linear(1024, 1024),
    nn.SiLU(),
    nn.Linear(1024, 10),
)
model = model.to(device="cuda")
ema = EMA(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
best, best_state = float("inf"), None
for step in range(4):
    x, y = torch.randn(512, 256, device="cuda"), torch.randint(0, 10, (512,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    if step % 2 == 1:
        with torch.inference_mode():
            value = nn.functional.cross_entropy(
                ema.module(torch.randn(2048, 256, device="cuda")),
                torch.zeros(2048, dtype=torch.long, device="cuda"),
            ).item()
        if value < best:
            best, best_state = value, copy.deepcopy(model.state_dict())
model.load_state_dict(best_state)
