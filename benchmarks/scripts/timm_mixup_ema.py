"""timm: a ViT with mixup, ModelEmaV3, LAMB by its factory, gradient clipping by its scaler."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, accuracy

device = torch.device("cuda")
model = timm.create_model(
    "vit_tiny_patch16_224", pretrained=False, num_classes=100, drop_path_rate=0.1, img_size=128
)
model.set_grad_checkpointing(False)
model.to(device)
ema = ModelEmaV3(model, decay=0.999, use_warmup=True)
optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02, layer_decay=0.75)
scheduler = CosineLRScheduler(optimizer, t_initial=10, warmup_t=2)
scaler = NativeScaler()
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=100)
criterion = SoftTargetCrossEntropy()
for step in range(4):
    images = torch.randn(32, 3, 128, 128).to(device, non_blocking=True)
    target = torch.randint(0, 100, (32,)).to(device, non_blocking=True)
    images, soft = mixup(images, target)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(images), soft)
    scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(), need_update=True)
    optimizer.zero_grad()
    ema.update(model, step=step)
    scheduler.step(step)
model.eval()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    for _ in range(2):
        images = torch.randn(64, 3, 128, 128, device=device)
        top1, top5 = accuracy(
            ema.module(images), torch.zeros(64, dtype=torch.long, device=device), (1, 5)
        )
        print(float(top1), float(top5))
