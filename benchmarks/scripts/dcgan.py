"""DCGAN as in the tutorial of PyTorch."""

import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def weights_init(m):
    if m.__class__.__name__.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif m.__class__.__name__.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


nz, ngf, ndf = 100, 64, 64
netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf * 8),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf * 4),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netG.apply(weights_init)
netD = nn.Sequential(
    nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ndf * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ndf * 4),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(64, nz, 1, 1, device=device)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
img_list = []
for i in range(4):
    netD.zero_grad()
    real = torch.randn(48, 3, 32, 32).to(device)
    label = torch.full((48,), 1.0, dtype=torch.float, device=device)
    out = netD(real).view(-1)
    errD_real = criterion(out, label)
    errD_real.backward()
    D_x = out.mean().item()
    noise = torch.randn(48, nz, 1, 1, device=device)
    fake = netG(noise)
    label.fill_(0.0)
    out = netD(fake.detach()).view(-1)
    errD_fake = criterion(out, label)
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    out = netD(fake).view(-1)
    errG = criterion(out, label)
    errG.backward()
    optimizerG.step()
    print(f"{errD_real.item() + errD_fake.item():.4f} {errG.item():.4f} {D_x:.4f}")
    with torch.no_grad():
        img_list.append(netG(fixed_noise).detach().cpu())
