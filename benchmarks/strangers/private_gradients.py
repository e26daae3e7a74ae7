"""Opacus: a gradient for each sample, clipped and noised.

Requires: opacus
"""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 8, 2),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(16 * 11 * 11, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = DataLoader(
    TensorDataset(torch.randn(320, 1, 28, 28), torch.randint(0, 10, (320,))), batch_size=64
)
engine = PrivacyEngine()
model, opt, data = engine.make_private(
    module=model,
    optimizer=opt,
    data_loader=data,
    noise_multiplier=1.1,
    max_grad_norm=1.0,
    poisson_sampling=False,
)
for epoch in range(1):
    for x, y in data:
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        opt.step()
print(engine.get_epsilon(1e-5))
