"""k-fold cross-validation: each fold's model is of another size and thrown away before the next."""

import gc

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(600, 64), torch.randn(600, 1))
order = np.random.default_rng(0).permutation(600)
folds = np.array_split(order, 4)


def build(width, depth):
    layers = [nn.Linear(64, width), nn.BatchNorm1d(width), nn.SiLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.SiLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


scores = []
for number, held in enumerate(folds):
    train = np.concatenate([fold for n, fold in enumerate(folds) if n != number])
    model = build(512 + 300 * number, 4 + number % 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=number == 2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    best = float("inf")
    for epoch in range(2):
        model.train()
        for x, y in DataLoader(
            Subset(data, train.tolist()), batch_size=128 + 32 * number, shuffle=True
        ):
            x, y = x.cuda(), y.cuda()
            optimizer.zero_grad()
            loss = nn.functional.huber_loss(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses = [
                nn.functional.mse_loss(model(x.cuda()), y.cuda()).item()
                for x, y in DataLoader(Subset(data, held.tolist()), batch_size=256)
            ]
        plateau.step(np.mean(losses))
        if np.mean(losses) < best:
            best, kept = (
                np.mean(losses),
                {k: v.cpu().clone() for k, v in model.state_dict().items()},
            )
            torch.save(kept, f"fold{number}.pt")
    scores.append(best)
    del model, optimizer, plateau, loss, x, y
    gc.collect()
    if number % 2:
        torch.cuda.empty_cache()
print(scores)
