"""MONAI: a 3-D UNet under a GradScaler, then inference by windows.

Requires: monai
"""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

model = UNet(
    spatial_dims=3,
    in_channels=1,
    out_channels=2,
    channels=(8, 16, 32),
    strides=(2, 2),
    num_res_units=2,
).cuda()
loss_fn = DiceCELoss(to_onehot_y=True, softmax=True)
opt = torch.optim.AdamW(model.parameters(), 1e-4)
scaler = torch.amp.GradScaler("cuda")
for i in range(5):
    x = torch.randn(2, 1, 32, 32, 32).cuda()
    y = torch.randint(0, 2, (2, 1, 32, 32, 32)).cuda()
    opt.zero_grad()
    with torch.autocast("cuda"):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
model.eval()
with torch.no_grad():
    sliding_window_inference(torch.randn(1, 1, 48, 48, 48).cuda(), (32, 32, 32), 2, model)
