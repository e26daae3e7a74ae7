"""A ControlNet beside a frozen UNet and autoencoder in fp16."""

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, ControlNetModel, DDPMScheduler, UNet2DConditionModel

u = UNet2DConditionModel(
    sample_size=32,
    block_out_channels=(64, 128),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=128,
    attention_head_dim=8,
    layers_per_block=1,
)
c = ControlNetModel.from_unet(u)
v = AutoencoderKL(
    block_out_channels=(32, 64),
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
    latent_channels=4,
    sample_size=64,
)
u.requires_grad_(False)
v.requires_grad_(False)
c.train()
wt = torch.float16
u.to("cuda", dtype=wt)
v.to("cuda", dtype=wt)
c.to("cuda")
opt = torch.optim.AdamW(c.parameters(), lr=1e-5)
sch = DDPMScheduler()
scaler = torch.amp.GradScaler()
for i in range(3):
    img = torch.randn(4, 3, 64, 64).to("cuda", wt)
    cond = torch.rand(4, 3, 256, 256, device="cuda", dtype=wt)[:, :, :256, :256]
    cond = F.interpolate(cond, (256, 256))
    lat = v.encode(img).latent_dist.sample() * v.config.scaling_factor
    n = torch.randn_like(lat)
    t = torch.randint(0, 1000, (4,), device="cuda").long()
    x = sch.add_noise(lat.float(), n.float(), t).to(wt)
    txt = torch.randn(4, 16, 128, device="cuda", dtype=wt)
    with torch.autocast("cuda", dtype=wt):
        d, mid = c(x, t, encoder_hidden_states=txt, controlnet_cond=cond, return_dict=False)
        pred = u(
            x,
            t,
            encoder_hidden_states=txt,
            down_block_additional_residuals=[s.to(wt) for s in d],
            mid_block_additional_residual=mid.to(wt),
            return_dict=False,
        )[0]
        loss = F.mse_loss(pred.float(), n.float())
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    print(i, loss.detach().item())
