"""Faces by an additive angular margin: the place of each label is filled in, and looked up."""

import math

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, SCALE, MARGIN = 40, 64.0, 0.5


class Margin(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(CLASSES, width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, embedded, labels):
        cosine = F.linear(F.normalize(embedded), F.normalize(self.weight))
        place = torch.zeros_like(cosine)
        place[torch.arange(len(labels)), labels] = 1
        own = cosine[place == 1]
        sine = torch.sqrt((1.0 - own.pow(2)).clamp(1e-9, 1))
        phi = own * math.cos(MARGIN) - sine * math.sin(MARGIN)
        changed = torch.where(own > math.cos(math.pi - MARGIN), phi, own - 0.2)
        return SCALE * (cosine + place * (changed - own)[:, None])


torch.manual_seed(0)
body = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, 2), nn.BatchNorm2d(32), nn.PReLU(32)),
    *(nn.Conv2d(32, 64, 3, 2), nn.BatchNorm2d(64), nn.PReLU(64)),
    *(nn.Flatten(), nn.LazyLinear(128, bias=False), nn.BatchNorm1d(128, affine=False)),
).cuda()
body(torch.zeros(2, 3, 56, 56, device="cuda"))
margin = Margin(128).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *margin.parameters()], 0.1, momentum=0.9)
for step in range(3):
    faces = torch.randn(48, 3, 56, 56).cuda(non_blocking=True)
    labels = torch.randint(0, CLASSES, (48,)).cuda(non_blocking=True)
    embedded = body(faces)
    loss = F.cross_entropy(margin(embedded, labels), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(body.parameters(), 5.0)
    optimizer.step()
    with torch.no_grad():
        near = F.normalize(embedded) @ F.normalize(embedded).T
        same = (labels[:, None] == labels[None]) & ~torch.eye(48, dtype=torch.bool, device="cuda")
        print(step, loss.item(), near[same].mean().item(), int(same.sum()))
