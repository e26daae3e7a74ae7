"""Stochastic weight averaging, OneCycle, tf32."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("high")
model = nn.Sequential(
    nn.Linear(512, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 10)
).cuda()
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=10)
late = SWALR(optimizer, swa_lr=0.05)
loader = torch.utils.data.DataLoader(
    [(torch.randn(512), n % 10) for n in range(512)], batch_size=128
)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch == 0:
            cycle.step()
    if epoch == 1:
        averaged.update_parameters(model)
        late.step()
print(averaged.n_averaged.shape)
