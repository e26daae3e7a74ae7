"""A U-Net over volumes: instance norms, trilinear upsampling, Dice loss, fp16 with a scaler."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Sequential):
    def __init__(s, i, o):
        super().__init__(
            nn.Conv3d(i, o, 3, padding=1),
            nn.InstanceNorm3d(o, affine=True),
            nn.LeakyReLU(0.01, True),
            nn.Conv3d(o, o, 3, padding=1),
            nn.InstanceNorm3d(o, affine=True),
            nn.LeakyReLU(0.01, True),
        )


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.c = Block(1, 16), Block(16, 32), Block(32, 64)
        s.d = Block(96, 32)
        s.e = Block(48, 16)
        s.o = nn.Conv3d(16, 4, 1)
        s.p = nn.MaxPool3d(2)

    def forward(s, x):
        a = s.a(x)
        b = s.b(s.p(a))
        c = s.c(s.p(b))
        d = s.d(
            torch.cat(
                [F.interpolate(c, scale_factor=2, mode="trilinear", align_corners=False), b], 1
            )
        )
        return s.o(
            s.e(
                torch.cat(
                    [F.interpolate(d, scale_factor=2, mode="trilinear", align_corners=False), a], 1
                )
            )
        )


def dice(l, t):
    p = l.softmax(1)
    t = F.one_hot(t, 4).permute(0, 4, 1, 2, 3).float()
    return 1 - ((2 * (p * t).sum((2, 3, 4)) + 1) / (p.sum((2, 3, 4)) + t.sum((2, 3, 4)) + 1)).mean()


m = Net().cuda()
o = torch.optim.SGD(m.parameters(), 0.01, momentum=0.99, nesterov=True)
s = torch.amp.GradScaler()
for i in range(3):
    x = torch.randn(1, 1, 48, 48, 48).cuda(non_blocking=True)
    t = torch.randint(0, 4, (1, 48, 48, 48)).cuda()
    with torch.autocast("cuda", torch.float16):
        l = m(x)
        loss = F.cross_entropy(l, t) + dice(l, t)
    o.zero_grad(set_to_none=True)
    s.scale(loss).backward()
    s.unscale_(o)
    nn.utils.clip_grad_norm_(m.parameters(), 12)
    s.step(o)
    s.update()
    print(loss.item())
