"""Style transfer: an image is trained by L-BFGS with a line search."""

import torch
import torch.nn as nn

vgg = (
    nn.Sequential(
        *[
            l
            for i, o in ((3, 32), (32, 64), (64, 64))
            for l in (nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        ]
    )
    .cuda()
    .eval()
    .requires_grad_(False)
)
target = torch.rand(1, 3, 96, 96).cuda()
img = target.clone().requires_grad_(True)


def gram(x):
    b, c, h, w = x.shape
    f = x.view(b * c, h * w)
    return f @ f.t() / (b * c * h * w)


with torch.no_grad():
    tg = [gram(vgg[:n](target)) for n in (2, 5, 8)]
opt = torch.optim.LBFGS([img], max_iter=6, history_size=4, line_search_fn="strong_wolfe")
for run in range(2):

    def closure():
        with torch.no_grad():
            img.clamp_(0, 1)
        opt.zero_grad()
        loss = sum(
            torch.nn.functional.mse_loss(gram(vgg[:n](img)), g) for n, g in zip((2, 5, 8), tg)
        )
        loss.backward()
        return loss

    print(opt.step(closure))
