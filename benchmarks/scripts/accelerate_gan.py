"""A GAN under accelerate with bf16 autocast, two optimizers and spectral norm."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

acc = Accelerator(mixed_precision="bf16")


class G(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(
            nn.Linear(128, 1024),
            nn.ReLU(),
            nn.Linear(1024, 4096),
            nn.ReLU(),
            nn.Linear(4096, 3 * 32 * 32),
            nn.Tanh(),
        )

    def forward(s, z):
        return s.net(z)


class D(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(
            spectral_norm(nn.Linear(3 * 32 * 32, 4096)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Linear(4096, 1024)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Linear(1024, 1)),
        )

    def forward(s, x):
        return s.net(x)


g, d = G(), D()
og = torch.optim.Adam(g.parameters(), 2e-4)
od = torch.optim.Adam(d.parameters(), 2e-4)
dl = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(256, 3 * 32 * 32)),
    batch_size=64,
    num_workers=2,
    pin_memory=True,
)
g, d, og, od, dl = acc.prepare(g, d, og, od, dl)
bce = nn.BCEWithLogitsLoss()
for (real,) in dl:
    z = torch.randn(real.size(0), 128, device=acc.device)
    with acc.autocast():
        fake = g(z)
        pr = d(real)
        pf = d(fake.detach())
        ld = bce(pr, torch.ones_like(pr)) + bce(pf, torch.zeros_like(pf))
    od.zero_grad()
    acc.backward(ld)
    od.step()
    with acc.autocast():
        pf = d(fake)
        lg = bce(pf, torch.ones_like(pf))
    og.zero_grad()
    acc.backward(lg)
    og.step()
    print(ld.item(), lg.item())
