"""accelerate looks for the largest batch size that fits a part of the GPU."""

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=3)
torch.cuda.set_per_process_memory_fraction(0.02)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(2000, 256)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True), 3
        )
        self.out = nn.Linear(256, 2000)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids)))


@find_executable_batch_size(starting_batch_size=512)
def inner(batch_size):
    accelerator.free_memory()
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    ds = torch.randint(0, 2000, (batch_size * 6, 64))
    dl = torch.utils.data.DataLoader(ds, batch_size, shuffle=True)
    sch = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.0)
    model, opt, dl, sch = accelerator.prepare(model, opt, dl, sch)
    for ids in dl:
        with accelerator.accumulate(model):
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sch.step()
            opt.zero_grad()
    print("bs", batch_size, accelerator.gather(loss.detach()).mean().item())


inner()
