"""Two networks of linear layers on Fashion-MNIST, one in fp32 and then one in fp16 by autocast.

    fashion_mlp.py BATCH

Source: a public notebook (Level2_mixed_precision_profiling): 784 values to 2048, 1024 and 10, Adam,
102 steps of either in one cell. Both networks and their optimizers stay, and what the loops name.

What decides memory: the only process of the card, with what CUDA, cuBLAS and the kernels hold;
gradients are dropped after the loss is known; the second network trains with PyTorch's scaler.
"""

import sys
from collections.abc import Iterator

import torch
from torch import nn

STEPS = 6


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    """With its optimizer."""
    layers = [nn.Linear(28 * 28, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(1024, 10)).to("cuda")
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def batches(batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pictures and their kinds, in pinned memory."""
    for _ in range(STEPS):
        pictures, kinds = torch.rand(batch, 1, 28, 28), torch.randint(10, (batch,))
        yield pictures.pin_memory(), kinds.pin_memory()


def main(batch: str) -> None:
    """One after the other."""
    judge = nn.CrossEntropyLoss()
    model, optimizer = network()
    for x, y in batches(int(batch)):
        x, y = x.to("cuda"), y.to("cuda")
        out = model(x)
        loss = judge(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    mixed, mixed_optimizer = network()
    scaler = torch.amp.GradScaler("cuda")
    for x, y in batches(int(batch)):
        x, y = x.to("cuda"), y.to("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            out = mixed(x)
            loss = judge(out, y)
        mixed_optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(mixed_optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
