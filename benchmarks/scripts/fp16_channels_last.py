"""A residual network, channels last, fp16 with a scaler, labels smoothed."""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(s, i, o, st):
        super().__init__()
        s.c1 = nn.Conv2d(i, o, 3, st, 1, bias=False)
        s.b1 = nn.BatchNorm2d(o)
        s.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        s.b2 = nn.BatchNorm2d(o)
        s.sk = (
            nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o))
            if i != o or st != 1
            else nn.Identity()
        )
        s.act = nn.SiLU(inplace=True)

    def forward(s, x):
        y = s.act(s.b1(s.c1(x)))
        y = s.b2(s.c2(y))
        return s.act(y + s.sk(x))


model = nn.Sequential(
    nn.Conv2d(3, 32, 7, 2, 3),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(3, 2, 1),
    Block(32, 64, 1),
    Block(64, 128, 2),
    Block(128, 256, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Dropout(0.1),
    nn.Linear(256, 100),
)
model = model.cuda().to(memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
scaler = torch.amp.GradScaler("cuda")
crit = nn.CrossEntropyLoss(label_smoothing=0.1)
for s in range(4):
    x = torch.randn(24, 3, 128, 128).to(
        "cuda", memory_format=torch.channels_last, non_blocking=True
    )
    y = torch.randint(0, 100, (24,)).cuda(non_blocking=True)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = crit(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    print(loss.item())
