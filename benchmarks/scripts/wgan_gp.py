"""A critic with gradient penalty: gradients of gradients, five critic steps to one."""

import torch
from torch import nn

critic = nn.Sequential(
    nn.Linear(256, 512), nn.LeakyReLU(), nn.Linear(512, 512), nn.LeakyReLU(), nn.Linear(512, 1)
).cuda()
generator = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
c_optimizer = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9))
g_optimizer = torch.optim.Adam(generator.parameters(), 1e-4, betas=(0.0, 0.9))
for step in range(6):
    real = torch.randn(256, 256, device="cuda")
    fake = generator(torch.randn(256, 32, device="cuda")).detach()
    mix = torch.rand(256, 1, device="cuda")
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    score = critic(between)
    grads = torch.autograd.grad(
        score, between, torch.ones_like(score), create_graph=True, retain_graph=True
    )[0]
    penalty = ((grads.norm(2, dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    c_optimizer.zero_grad(set_to_none=True)
    loss.backward()
    c_optimizer.step()
    if step % 5 == 4:
        g_optimizer.zero_grad(set_to_none=True)
        (-critic(generator(torch.randn(256, 32, device="cuda"))).mean()).backward()
        g_optimizer.step()
