"""denoising-diffusion-pytorch: training with an EMA, then sampling from it.

Requires: denoising-diffusion-pytorch ema-pytorch
"""

import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Unet
from ema_pytorch import EMA

model = Unet(dim=32, dim_mults=(1, 2, 4), flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=32, timesteps=1000, sampling_timesteps=4).cuda()
opt = torch.optim.Adam(diffusion.parameters(), lr=8e-5, betas=(0.9, 0.99))
ema = EMA(diffusion, beta=0.995, update_every=1).cuda()
for i in range(5):
    loss = diffusion(torch.rand(8, 3, 32, 32).cuda())
    loss.backward()
    opt.step()
    opt.zero_grad()
    ema.update()
ema.ema_model.eval()
with torch.no_grad():
    print(ema.ema_model.sample(batch_size=4).shape)
