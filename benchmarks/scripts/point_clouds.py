"""Point clouds: nearest neighbors by cdist and topk, edge convolutions, max over neighbors."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def knn(x, k):
    d = -torch.cdist(x.transpose(1, 2), x.transpose(1, 2))
    return d.topk(k, -1).indices


def feat(x, k=16):
    B, C, N = x.shape
    i = knn(x, k) + torch.arange(B, device=x.device)[:, None, None] * N
    xt = x.transpose(1, 2).contiguous()
    nb = xt.view(B * N, C)[i.view(-1)].view(B, N, k, C)
    c = xt.view(B, N, 1, C).expand(-1, -1, k, -1)
    return torch.cat([nb - c, c], 3).permute(0, 3, 1, 2).contiguous()


class D(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Sequential(nn.Conv2d(6, 64, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2))
        s.b = nn.Sequential(
            nn.Conv2d(128, 64, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2)
        )
        s.c = nn.Sequential(
            nn.Conv1d(128, 256, 1, bias=False), nn.BatchNorm1d(256), nn.LeakyReLU(0.2)
        )
        s.f = nn.Sequential(
            nn.Linear(512, 128), nn.BatchNorm1d(128), nn.Dropout(0.5), nn.Linear(128, 40)
        )

    def forward(s, x):
        a = s.a(feat(x)).max(-1)[0]
        b = s.b(feat(a)).amax(-1)
        c = s.c(torch.cat([a, b], 1))
        return s.f(
            torch.cat(
                [F.adaptive_max_pool1d(c, 1).flatten(1), F.adaptive_avg_pool1d(c, 1).flatten(1)], 1
            )
        )


m = D().cuda()
o = torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=1e-4)
sc = torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)
for i in range(3):
    x = torch.rand(8, 3, 512, device="cuda")
    y = torch.randint(40, (8,), device="cuda")
    l = F.cross_entropy(m(x), y, label_smoothing=0.2)
    o.zero_grad()
    l.backward()
    o.step()
    sc.step()
    print(l.item())
