"""A learning rate range test, then training from the saved weights, with SWA at the end."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.GroupNorm(8, c),
            nn.ReLU(inplace=True),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return torch.relu_(x + self.body(x))


device = torch.device("cuda:0")
model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.MaxPool2d(2),
    Residual(64),
    Residual(64),
    nn.Conv2d(64, 128, 3, 2, 1),
    Residual(128),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 10),
).to(device)
loader = DataLoader(
    TensorDataset(torch.randn(96, 3, 64, 64), torch.randint(0, 10, (96,))),
    batch_size=32,
    num_workers=2,
)
criterion = nn.CrossEntropyLoss()


def search(start=1e-6, end=1.0, steps=5):
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=start, momentum=0.9, nesterov=True)
    kept = copy.deepcopy(optimizer.state_dict())
    factor, best, rates = (end / start) ** (1 / steps), float("inf"), []
    batches = iter(loader)
    for _ in range(steps):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        rates.append((optimizer.param_groups[0]["lr"], loss.item()))
        if loss.item() > 4 * best:
            break
        best = min(best, loss.item())
        for group in optimizer.param_groups:
            group["lr"] *= factor
    model.load_state_dict(before)
    optimizer.load_state_dict(kept)
    return min(rates, key=lambda r: r[1])[0]


rate = search()
optimizer = torch.optim.SGD(model.parameters(), lr=max(rate, 1e-3), momentum=0.9)
averaged, swa = AveragedModel(model), SWALR(optimizer, swa_lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    averaged.update_parameters(model)
    swa.step()
update_bn(loader, averaged, device=device)
