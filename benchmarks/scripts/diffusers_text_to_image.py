"""Text to image with LoRA: VAE, text encoder and UNet in fp16, accumulation, checkpointing."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import cast_training_params
from peft import LoraConfig
from transformers import CLIPTextConfig, CLIPTextModel

acc = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
text = CLIPTextModel(
    CLIPTextConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=1000,
        max_position_embeddings=77,
    )
)
vae = AutoencoderKL(
    block_out_channels=(32, 64),
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
    latent_channels=4,
    norm_num_groups=8,
)
unet = UNet2DConditionModel(
    sample_size=32,
    block_out_channels=(64, 128),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=64,
    layers_per_block=1,
    attention_head_dim=8,
    norm_num_groups=16,
)
sched = DDPMScheduler(num_train_timesteps=1000)
for m in (unet, vae, text):
    m.requires_grad_(False)
dt = torch.float16
unet.to(acc.device, dtype=dt)
vae.to(acc.device, dtype=dt)
text.to(acc.device, dtype=dt)
unet.add_adapter(
    LoraConfig(
        r=8,
        lora_alpha=8,
        init_lora_weights="gaussian",
        target_modules=["to_k", "to_q", "to_v", "to_out.0"],
    )
)
cast_training_params(unet, dtype=torch.float32)
unet.enable_gradient_checkpointing()
layers = [p for p in unet.parameters() if p.requires_grad]
opt = torch.optim.AdamW(layers, 1e-4)


class D(torch.utils.data.Dataset):
    def __len__(s):
        return 32

    def __getitem__(s, i):
        return {"pixel_values": torch.randn(3, 64, 64), "input_ids": torch.randint(0, 1000, (77,))}


dl = torch.utils.data.DataLoader(D(), 4, shuffle=True, num_workers=2)
lr = get_scheduler("constant", opt, num_warmup_steps=0, num_training_steps=10)
unet, opt, dl, lr = acc.prepare(unet, opt, dl, lr)
for step, b in enumerate(dl):
    with acc.accumulate(unet):
        lat = (
            vae.encode(b["pixel_values"].to(dtype=dt)).latent_dist.sample()
            * vae.config.scaling_factor
        )
        noise = torch.randn_like(lat)
        t = torch.randint(
            0, sched.config.num_train_timesteps, (lat.shape[0],), device=lat.device
        ).long()
        noisy = sched.add_noise(lat, noise, t)
        enc = text(b["input_ids"], return_dict=False)[0]
        pred = unet(noisy, t, enc, return_dict=False)[0]
        loss = F.mse_loss(pred.float(), noise.float(), reduction="mean")
        avg = acc.gather(loss.repeat(4)).mean()
        acc.backward(loss)
        if acc.sync_gradients:
            acc.clip_grad_norm_(layers, 1.0)
        opt.step()
        lr.step()
        opt.zero_grad()
        print(avg.item())
