"""timm: a ConvNeXt with channels last, LAMB and an EMA.

Requires: timm
"""

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

model = (
    timm.create_model("convnext_atto", num_classes=10).cuda().to(memory_format=torch.channels_last)
)
opt = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.05)
ema = ModelEmaV3(model, decay=0.99)
for i in range(5):
    x = torch.randn(8, 3, 96, 96).cuda().to(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), torch.randint(0, 10, (8,)).cuda())
    loss.backward()
    opt.step()
    opt.zero_grad()
    ema.update(model)
with torch.no_grad():
    ema.module(x)
