"""The largest batch is searched for by running out of memory, with accelerate's helper."""

import torch
from accelerate.utils import find_executable_batch_size
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


@find_executable_batch_size(starting_batch_size=65536)
def train(batch_size):
    print("trying", batch_size)
    for _ in range(2):
        x = torch.randn(batch_size, 1024, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return batch_size


print("batch", train())
print(torch.cuda.memory_summary(abbreviated=True)[:200])
