"""SimCLR with own Lion, a queue of negatives, NT-Xent by masks, cosine weights on host and GPU."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                m, (b1, b2) = state["exp_avg"], group["betas"]
                update = m.clone().mul_(b1).add(p.grad, alpha=1 - b1).sign_()
                p.add_(update, alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2, 1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.BatchNorm2d(128),
            nn.ReLU(inplace=True),
            nn.Conv2d(128, 256, 3, 2, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128))

    def forward(self, x):
        return F.normalize(self.head(self.body(x)), dim=1)


def nt_xent(a, b, temperature=0.2):
    z = torch.cat([a, b])
    n = z.size(0)
    logits = z @ z.t() / temperature
    logits.masked_fill_(torch.eye(n, dtype=torch.bool, device=z.device), float("-inf"))
    target = (torch.arange(n, device=z.device) + n // 2) % n
    return F.cross_entropy(logits, target)


model = Encoder().cuda()
optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=0.1)
queue = F.normalize(torch.randn(2048, 128, device="cuda"), dim=1)
at = 0
for step in range(4):
    views = [
        torch.randn(96, 3, 48, 48).pin_memory().to("cuda", non_blocking=True) for _ in range(2)
    ]
    with torch.autocast("cuda", torch.float16, cache_enabled=step % 2 == 0):
        a, b = model(views[0]), model(views[1])
    loss = nt_xent(a.float(), b.float())
    loss = loss + torch.logsumexp(a.float() @ queue.t(), 1).mean()
    model.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        queue[at : at + 96] = b.detach().float()
        at = (at + 96) % (2048 - 96)
        rank = (a @ b.t()).argsort(dim=1, descending=True)
        hits = (rank[:, :5] == torch.arange(96, device="cuda")[:, None]).any(1).float().mean()
    print(step, f"{loss.item():.3f} {hits.item():.3f}")
