"""The hardest half of a batch is trained on; confusion counts, quantiles and entropies after it."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.c = nn.Sequential(
            nn.Conv1d(1, 64, 7, 2, 3),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 128, 5, 2, 2),
            nn.GELU(),
            nn.AdaptiveMaxPool1d(16),
        )
        s.f = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(2048, 20))

    def forward(s, x):
        return s.f(s.c(x))


m = Net().cuda()
opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
w = torch.rand(20, device="cuda")
ce = nn.CrossEntropyLoss(weight=w, reduction="none")
hist = []
for ep in range(2):
    m.train()
    for _ in range(3):
        x, y = torch.randn(64, 1, 4096, device="cuda"), torch.randint(0, 20, (64,), device="cuda")
        l = ce(m(x), y)
        hard = l.topk(32).values.mean()
        opt.zero_grad()
        hard.backward()
        opt.step()
        hist.append(hard.detach())
    m.eval()
    conf = torch.zeros(400, device="cuda")
    probs = []
    with torch.inference_mode():
        for _ in range(2):
            x, y = (
                torch.randn(128, 1, 4096, device="cuda"),
                torch.randint(0, 20, (128,), device="cuda"),
            )
            p = m(x).softmax(1)
            probs.append(p)
            conf += torch.bincount(y * 20 + p.argmax(1), minlength=400).float()
    allp = torch.cat(probs)
    ent = -(allp * allp.clamp_min(1e-9).log()).sum(1)
    order = ent.argsort(descending=True)[:50]
    q = torch.quantile(ent, torch.tensor([0.1, 0.5, 0.9], device="cuda"))
    hard_ones = allp[ent > q[2]]
    print(
        ep,
        conf.view(20, 20).diag().sum().item(),
        hard_ones.shape[0] >= 0,
        torch.stack(hist).mean().cpu(),
        order.cpu()[:3].shape,
    )
