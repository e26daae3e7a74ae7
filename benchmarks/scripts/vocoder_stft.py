"""A vocoder: weight-normed convolutions, four discriminators, spectra by torch.stft on the GPU."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import spectral_norm, weight_norm

torch.manual_seed(0)
win = {}


def mel(x, n=512, hop=128):
    if x.device not in win:
        win[x.device] = (torch.hann_window(n).to(x.device), torch.rand(40, n // 2 + 1).to(x.device))
    w, b = win[x.device]
    x = F.pad(x.unsqueeze(1), ((n - hop) // 2, (n - hop) // 2), mode="reflect").squeeze(1)
    s = torch.stft(x, n, hop, n, w, center=False, return_complex=True)
    s = torch.sqrt(torch.view_as_real(s).pow(2).sum(-1) + 1e-9)
    return torch.log(torch.clamp(b @ s, min=1e-5))


class RB(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.c = nn.ModuleList(
            [weight_norm(nn.Conv1d(c, c, 3, 1, dilation=d, padding=d)) for d in (1, 3)]
        )

    def forward(s, x):
        for c in s.c:
            x = c(F.leaky_relu(x, 0.1)) + x
        return x


class Gen(nn.Module):
    def __init__(s):
        super().__init__()
        s.pre = weight_norm(nn.Conv1d(40, 64, 7, 1, 3))
        s.up = nn.ModuleList(
            [
                weight_norm(nn.ConvTranspose1d(64 // 2**i, 64 // 2 ** (i + 1), k, u, (k - u) // 2))
                for i, (u, k) in enumerate(((8, 16), (8, 16), (2, 4)))
            ]
        )
        s.rb = nn.ModuleList([RB(64 // 2 ** (i + 1)) for i in range(3)])
        s.post = weight_norm(nn.Conv1d(8, 1, 7, 1, 3))

    def forward(s, x):
        x = s.pre(x)
        for u, r in zip(s.up, s.rb):
            x = r(u(F.leaky_relu(x, 0.1)))
        return torch.tanh(s.post(F.leaky_relu(x)))


class P(nn.Module):
    def __init__(s, p):
        super().__init__()
        s.p = p
        s.c = nn.ModuleList(
            [
                weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)))
                for a, b in ((1, 16), (16, 32), (32, 64))
            ]
        )
        s.o = weight_norm(nn.Conv2d(64, 1, (3, 1), 1, (1, 0)))

    def forward(s, x):
        f = []
        b, c, t = x.shape
        if t % s.p:
            x = F.pad(x, (0, s.p - t % s.p), "reflect")
            t = x.shape[-1]
        x = x.view(b, c, t // s.p, s.p)
        for l in s.c:
            x = F.leaky_relu(l(x), 0.1)
            f.append(x)
        x = s.o(x)
        f.append(x)
        return x.flatten(1), f


class S(nn.Module):
    def __init__(s):
        super().__init__()
        s.c = nn.ModuleList(
            [
                spectral_norm(nn.Conv1d(a, b, 15, st, 7, groups=g))
                for a, b, st, g in ((1, 16, 1, 1), (16, 32, 2, 4), (32, 64, 2, 4))
            ]
        )
        s.o = spectral_norm(nn.Conv1d(64, 1, 3, 1, 1))

    def forward(s, x):
        f = []
        for l in s.c:
            x = F.leaky_relu(l(x), 0.1)
            f.append(x)
        x = s.o(x)
        f.append(x)
        return x.flatten(1), f


g = Gen().cuda()
ds = nn.ModuleList([P(2), P(3), P(5), S()]).cuda()
og, od = (
    torch.optim.AdamW(g.parameters(), 2e-4, betas=(0.8, 0.99)),
    torch.optim.AdamW(ds.parameters(), 2e-4, betas=(0.8, 0.99)),
)
sg = torch.optim.lr_scheduler.ExponentialLR(og, 0.999)
for it in range(3):
    y = torch.randn(4, 4096).clamp(-1, 1).cuda()
    x = mel(y)
    yh = g(x)[..., :4096]
    od.zero_grad()
    Ld = 0
    for d in ds:
        r, _ = d(y[:, None])
        f, _ = d(yh.detach())
        Ld = Ld + ((1 - r) ** 2).mean() + (f**2).mean()
    Ld.backward()
    od.step()
    og.zero_grad()
    Lg = 45 * F.l1_loss(mel(yh.squeeze(1)), x)
    for d in ds:
        r, fr = d(y[:, None])
        f, ff = d(yh)
        Lg = (
            Lg
            + ((1 - f) ** 2).mean()
            + 2 * sum((a.detach() - b).abs().mean() for a, b in zip(fr, ff))
        )
    Lg.backward()
    og.step()
    sg.step()
