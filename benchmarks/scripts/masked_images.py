"""A masked autoencoder of images under fp16 autocast, with clipping of unscaled gradients."""

import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

m = ViTMAEForPreTraining(
    ViTMAEConfig(
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=1536,
        decoder_num_hidden_layers=2,
        decoder_hidden_size=256,
        decoder_num_attention_heads=8,
        decoder_intermediate_size=1024,
    )
).cuda()
opt = torch.optim.AdamW(m.parameters(), lr=1e-4, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cuda")
for i in range(3):
    x = torch.randn(16, 3, 224, 224, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = m(pixel_values=x).loss
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    print(i, loss.item(), scaler.get_scale())
