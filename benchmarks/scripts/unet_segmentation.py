"""A U-Net for segmentation: skip connections, upsampling, dice loss, metrics per class."""

import torch
import torch.nn.functional as F
from torch import nn


def double(cin, cout):
    return nn.Sequential(
        *(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        ),
        *(
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        ),
    )


class UNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.down = nn.ModuleList([double(1, 16), double(16, 32), double(32, 64)])
        self.up = nn.ModuleList([double(64 + 32, 32), double(32 + 16, 16)])
        self.out = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1]):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = block(torch.cat([x, skip], 1))
        return self.out(x)


def dice(logits, target):
    p = logits.softmax(1)
    t = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
    return 1 - (2 * (p * t).sum((2, 3)) / ((p + t).sum((2, 3)) + 1e-6)).mean()


model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for step in range(3):
    x = torch.randn(8, 1, 128, 128).cuda()
    y = torch.randint(0, 4, (8, 128, 128)).cuda()
    logits = model(x)
    loss = F.cross_entropy(logits, y) + dice(logits, y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    guess = logits.argmax(1)
    shares = [
        ((guess == c) & (y == c)).sum().item() / max((y == c).sum().item(), 1) for c in range(4)
    ]
    print(step, loss.item(), shares)
