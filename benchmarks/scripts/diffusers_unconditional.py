"""An unconditional diffusion model under accelerate, with diffusers' EMA and SNR weights."""

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, compute_snr

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=1)
model = UNet2DModel(
    sample_size=32,
    block_out_channels=(32, 64),
    layers_per_block=1,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=8,
)
ema = EMAModel(
    model.parameters(),
    decay=0.999,
    use_ema_warmup=True,
    model_cls=UNet2DModel,
    model_config=model.config,
)
noising = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-6)
loader = torch.utils.data.DataLoader(torch.randn(64, 3, 32, 32), batch_size=16, shuffle=True)
schedule = get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=1, num_training_steps=8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
ema.to(accelerator.device)
for images in loader:
    noise = torch.randn(images.shape, dtype=torch.float32, device=images.device)
    times = torch.randint(0, 1000, (images.shape[0],), device=images.device, dtype=torch.int64)
    with accelerator.accumulate(model):
        guess = model(noising.add_noise(images, noise, times), times).sample
        weight = torch.clamp(compute_snr(noising, times), max=5.0).view(-1, 1, 1, 1)
        loss = (
            weight * torch.nn.functional.mse_loss(guess.float(), noise, reduction="none")
        ).mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        ema.step(model.parameters())
ema.store(model.parameters())
ema.copy_to(model.parameters())
