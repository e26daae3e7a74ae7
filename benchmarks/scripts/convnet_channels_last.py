"""A convolutional network in channels_last and fp16 autocast."""

import torch
from torch import nn

net = nn.Sequential(
    *(nn.Conv2d(3, 64, 7, 2, 3), nn.GroupNorm(8, 64), nn.SiLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(64, 128, 3, 1, 1), nn.GroupNorm(8, 128), nn.SiLU()),
    *(nn.Conv2d(128, 256, 3, 2, 1), nn.GroupNorm(8, 256), nn.SiLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)),
)
net = net.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.9)
scaler = torch.cuda.amp.GradScaler()
for _ in range(3):
    x = torch.randn(32, 3, 96, 96).cuda().contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (32,), device="cuda")
    optimizer.zero_grad()
    with torch.cuda.amp.autocast():
        loss = nn.functional.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
