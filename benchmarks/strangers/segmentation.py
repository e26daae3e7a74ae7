"""segmentation-models-pytorch: a UNet with metrics read each step.

Requires: segmentation-models-pytorch
"""

import segmentation_models_pytorch as smp
import torch

model = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=4).cuda()
loss_fn = smp.losses.DiceLoss("multiclass")
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for i in range(5):
    x = torch.randn(4, 3, 128, 128).cuda()
    y = torch.randint(0, 4, (4, 128, 128)).cuda()
    opt.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    opt.step()
    tp, fp, fn, tn = smp.metrics.get_stats(model(x).argmax(1), y, mode="multiclass", num_classes=4)
    print(loss.item(), smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro"))
