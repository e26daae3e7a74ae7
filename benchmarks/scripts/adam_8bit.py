"""bitsandbytes' 8-bit AdamW on a model whose embedding keeps 32-bit state."""

import bitsandbytes as bnb
import torch
from torch import nn

model = nn.ModuleDict(
    {
        "words": bnb.nn.StableEmbedding(8000, 256),
        "body": nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)),
        "out": nn.Linear(256, 8000),
    }
)
model.cuda()
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-3)
for _ in range(3):
    ids = torch.randint(0, 8000, (16, 128), device="cuda")
    loss = nn.functional.cross_entropy(
        model["out"](model["body"](model["words"](ids))).flatten(0, 1), ids.flatten()
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
