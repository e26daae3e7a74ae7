"""Every kind of convolution: grouped, depthwise, dilated, transposed; one, two, three dimensions."""

import torch
from torch import nn

picture = nn.Sequential(
    *(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1, groups=24)),
    *(nn.Conv2d(24, 48, 1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=2, dilation=2, groups=4)),
    *(
        nn.InstanceNorm2d(48, affine=True),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(48, 16, 4, 2, 1),
        nn.Conv2d(16, 1, 7),
    ),
).cuda()
sound = nn.Sequential(
    *(nn.Conv1d(1, 32, 25, 5), nn.BatchNorm1d(32), nn.LeakyReLU(), nn.Conv1d(32, 32, 9, groups=32)),
    *(
        nn.Conv1d(32, 64, 5, dilation=3),
        nn.GLU(1),
        nn.ConvTranspose1d(32, 8, 4, 2),
        nn.AvgPool1d(4),
    ),
).cuda()
volume = nn.Sequential(
    *(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, groups=8), nn.MaxPool3d(2)),
    *(nn.ConvTranspose3d(8, 4, 2, 2), nn.AdaptiveAvgPool3d(2)),
).cuda()
models = nn.ModuleList([picture, sound, volume])
optimizer = torch.optim.ASGD(models.parameters(), lr=1e-2)
for _ in range(3):
    loss = picture(torch.randn(6, 3, 48, 48, device="cuda")).square().mean()
    loss = loss + sound(torch.randn(6, 1, 4000, device="cuda")).abs().mean()
    loss = loss + volume(torch.randn(2, 1, 16, 24, 24, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
