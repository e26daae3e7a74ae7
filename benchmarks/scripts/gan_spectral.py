"""Two networks, two optimizers: a GAN with spectral normalization and hinge loss."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

generator = nn.Sequential(
    *(nn.Linear(64, 256 * 4 * 4), nn.Unflatten(1, (256, 4, 4))),
    *(nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.ReLU(True)),
    *(nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(True)),
    *(nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()),
).cuda()
discriminator = nn.Sequential(
    *(spectral_norm(nn.Conv2d(3, 64, 4, 2, 1)), nn.LeakyReLU(0.2)),
    *(spectral_norm(nn.Conv2d(64, 128, 4, 2, 1)), nn.LeakyReLU(0.2)),
    *(nn.Flatten(), spectral_norm(nn.Linear(128 * 8 * 8, 1))),
).cuda()
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for step in range(3):
    real = torch.randn(32, 3, 32, 32).cuda()
    noise = torch.randn(32, 64, device="cuda")
    fake = generator(noise)
    d_loss = (
        torch.relu(1 - discriminator(real)).mean()
        + torch.relu(1 + discriminator(fake.detach())).mean()
    )
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = -discriminator(fake).mean()
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
    print(step, d_loss.item(), g_loss.item())
