"""A loop that halves its batch when the GPU is full, and find_executable_batch_size of accelerate."""

import gc

import torch
from accelerate.utils import find_executable_batch_size
from torch import nn

WIDTH = 4096


def build():
    layers = []
    for _ in range(6):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers).cuda()


def train(model, optimizer, batch, steps=2):
    for _ in range(steps):
        x = torch.randn(batch, 64, WIDTH, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batch = 8192
while True:
    try:
        train(model, optimizer, batch)
        break
    except torch.cuda.OutOfMemoryError as error:
        print("too large", batch, str(error)[:40])
        batch //= 2
        optimizer.zero_grad(set_to_none=True)
        del error
        gc.collect()
        torch.cuda.empty_cache()
print("batch", batch)
del model, optimizer


@find_executable_batch_size(starting_batch_size=10000)
def inner(size):
    model = build()
    train(model, torch.optim.AdamW(model.parameters()), size, steps=1)
    return size


print("found", inner())
