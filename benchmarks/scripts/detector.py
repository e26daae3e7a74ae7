"""A small detector: fp16, targets by indices, images of several sizes, accumulation."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class C(nn.Module):
    def __init__(s, i, o, k=1, st=1):
        super().__init__()
        s.c = nn.Conv2d(i, o, k, st, k // 2, bias=False)
        s.b = nn.BatchNorm2d(o, eps=1e-3, momentum=0.03)
        s.a = nn.SiLU()

    def forward(s, x):
        return s.a(s.b(s.c(x)))


class C2f(nn.Module):
    def __init__(s, i, o, n=1):
        super().__init__()
        s.h = o // 2
        s.c1 = C(i, o)
        s.c2 = C((2 + n) * s.h, o)
        s.m = nn.ModuleList(nn.Sequential(C(s.h, s.h, 3), C(s.h, s.h, 3)) for _ in range(n))

    def forward(s, x):
        y = list(s.c1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in s.m)
        return s.c2(torch.cat(y, 1))


class Y(nn.Module):
    def __init__(s):
        super().__init__()
        s.s = C(3, 16, 3, 2)
        s.d1 = nn.Sequential(C(16, 32, 3, 2), C2f(32, 32))
        s.d2 = nn.Sequential(C(32, 64, 3, 2), C2f(64, 64, 2))
        s.d3 = nn.Sequential(C(64, 128, 3, 2), C2f(128, 128))
        s.u = C2f(192, 64)
        s.h1 = nn.Conv2d(64, 24, 1)
        s.h2 = nn.Conv2d(128, 24, 1)

    def forward(s, x):
        a = s.d2(s.d1(s.s(x)))
        b = s.d3(a)
        return s.h1(s.u(torch.cat([F.interpolate(b, scale_factor=2, mode="nearest"), a], 1))), s.h2(
            b
        )


def loss_fn(preds, boxes):
    total = torch.zeros(1, device=preds[0].device)
    for p in preds:
        B, _, H, W = p.shape
        p = p.view(B, 3, 8, H, W).permute(0, 1, 3, 4, 2)
        gx = (boxes[:, 2] * W).long().clamp(0, W - 1)
        gy = (boxes[:, 3] * H).long().clamp(0, H - 1)
        bi = boxes[:, 0].long()
        sel = p[bi, :, gy, gx]
        tobj = torch.zeros_like(p[..., 0])
        pxy = sel[..., :2].sigmoid()
        pwh = (sel[..., 2:4].sigmoid() * 2) ** 2
        iou = 1 - ((pxy - boxes[:, None, 2:4]).abs() + (pwh - boxes[:, None, 4:]).abs()).mean(-1)
        tobj[bi, :, gy, gx] = iou.detach().clamp(0).type(tobj.dtype)
        total += (
            (1 - iou).mean()
            + F.binary_cross_entropy_with_logits(p[..., 4], tobj)
            + F.binary_cross_entropy_with_logits(sel[..., 5:], torch.zeros_like(sel[..., 5:]))
        )
    return total


m = Y().cuda()
g = [[], []]
for mod in m.modules():
    for n, p in mod.named_parameters(recurse=False):
        g[n == "bias" or isinstance(mod, nn.BatchNorm2d)].append(p)
opt = torch.optim.SGD(g[0], lr=0.01, momentum=0.937, nesterov=True)
opt.add_param_group({"params": g[1], "weight_decay": 0.0})
scaler = torch.cuda.amp.GradScaler()
for it in range(4):
    sz = [128, 160, 96, 160][it]
    x = (
        torch.randint(0, 255, (8, 3, sz, sz), dtype=torch.uint8).cuda(non_blocking=True).float()
        / 255
    )
    boxes = torch.cat(
        [torch.arange(20)[:, None] % 8, torch.zeros(20, 1), torch.rand(20, 4)], 1
    ).cuda()
    with torch.cuda.amp.autocast():
        loss = loss_fn(m(x), boxes)
    scaler.scale(loss).backward()
    if it % 2:
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(m.parameters(), 10.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    print(it, loss.item(), f"{torch.cuda.memory_reserved() / 1e9:.3g}G")
