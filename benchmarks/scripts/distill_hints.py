"""Knowledge distillation: teacher in half precision without gradients, hidden states matched by hooks."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--temperature", type=float, default=2.0)
parser.add_argument("--alpha", type=float, default=0.5)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()
torch.manual_seed(42)
torch.cuda.manual_seed_all(42)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def basic(i, o, s=1):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)
    )


def net(w):
    return nn.Sequential(
        basic(3, w),
        basic(w, w),
        basic(w, 2 * w, 2),
        basic(2 * w, 2 * w),
        basic(2 * w, 4 * w, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * w, 20),
    )


teacher, student = net(64).to(dev).half().eval(), net(16).to(dev)
teacher.requires_grad_(False)
kept = {}
for name, model, layer in (("t", teacher, 3), ("s", student, 3)):
    model[layer].register_forward_hook(lambda m, i, o, name=name: kept.__setitem__(name, o))
match = nn.Conv2d(32, 128, 1).to(dev)
params = [*student.parameters(), *match.parameters()]
optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=5e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
data = TensorDataset(torch.randn(200, 3, 32, 32), torch.randint(0, 20, (200,)))
a, b = random_split(data, [160, 40])
loader, val = DataLoader(a, args.batch_size, shuffle=True, pin_memory=True), DataLoader(b, 40)
best = 0
for epoch in range(2):
    student.train()
    for x, y in loader:
        x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
        with torch.no_grad():
            t = teacher(x.half()).float()
        s = student(x)
        T = args.temperature
        kd = F.kl_div(F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean") * T * T
        hint = F.mse_loss(match(kept["s"]), kept["t"].float())
        loss = args.alpha * kd + (1 - args.alpha) * F.cross_entropy(s, y) + 0.1 * hint
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sched.step()
    student.eval()
    correct = 0
    with torch.no_grad():
        for x, y in val:
            correct += (student(x.to(dev)).argmax(1).cpu() == y).sum().item()
    if correct >= best:
        best = correct
        torch.save(student.state_dict(), f"best_{epoch}.pt")
    print(
        f"epoch {epoch} loss {loss.item():.3f} acc {correct / len(b):.3f} mem {torch.cuda.max_memory_allocated() / 1e6:.1f}"
    )
