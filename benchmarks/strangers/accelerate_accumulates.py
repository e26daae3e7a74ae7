"""accelerate: accumulation, clipping and a scheduler under bf16.

Requires: accelerate
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

a = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2
)
opt = torch.optim.AdamW(model.parameters(), 1e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, 1)
data = DataLoader(TensorDataset(torch.randn(160, 32, 128)), batch_size=16)
model, opt, data, sched = a.prepare(model, opt, data, sched)
for (x,) in data:
    with a.accumulate(model):
        loss = model(x).float().square().mean()
        a.backward(loss)
        if a.sync_gradients:
            a.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
