"""A text-to-image UNet of diffusers: frozen in bf16, LoRA on attention, noise prediction."""

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig

unet = UNet2DConditionModel(
    sample_size=32,
    block_out_channels=(64, 128),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=128,
    attention_head_dim=8,
    norm_num_groups=16,
)
unet.requires_grad_(False)
unet.to("cuda", dtype=torch.bfloat16)
unet.add_adapter(LoraConfig(r=8, lora_alpha=8, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
trained = [p for p in unet.parameters() if p.requires_grad]
for p in trained:
    p.data = p.data.float()
optimizer = torch.optim.AdamW(trained, lr=1e-4)
noising = DDPMScheduler(num_train_timesteps=1000)
for _ in range(3):
    latents = torch.randn(4, 4, 32, 32).to("cuda", torch.bfloat16)
    noise = torch.randn_like(latents)
    times = torch.randint(0, noising.config.num_train_timesteps, (4,), device=latents.device).long()
    text = torch.zeros(4, 77, 128, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        guess = unet(noising.add_noise(latents, noise, times), times, text).sample
        loss = torch.nn.functional.mse_loss(guess.float(), noise.float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
