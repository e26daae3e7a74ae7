"""open_clip: two towers and a contrastive loss.

Requires: open_clip_torch
"""

import torch
from open_clip.loss import ClipLoss
from open_clip.model import CLIP

model = CLIP(
    128,
    dict(image_size=64, layers=2, width=128, patch_size=16),
    dict(context_length=32, vocab_size=500, width=128, heads=2, layers=2),
).cuda()
opt = torch.optim.AdamW(model.parameters(), 1e-4)
loss_fn = ClipLoss()
for i in range(5):
    img, txt, scale = model(
        torch.randn(16, 3, 64, 64).cuda(), torch.randint(0, 500, (16, 32)).cuda()
    )[:3]
    loss = loss_fn(img, txt, scale)
    loss.backward()
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6)
