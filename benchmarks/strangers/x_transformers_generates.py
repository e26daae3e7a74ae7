"""x-transformers: rotary decoder, accumulation, then sampling.

Requires: x-transformers
"""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=5000,
        max_seq_len=256,
        attn_layers=Decoder(dim=256, depth=4, heads=4, rotary_pos_emb=True, attn_flash=True),
    )
).cuda()
optim = torch.optim.Adam(model.parameters(), lr=1e-4)
for i in range(6):
    model.train()
    for _ in range(2):
        loss = model(torch.randint(0, 5000, (4, 257)).cuda())
        (loss / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optim.step()
    optim.zero_grad()
model.eval()
sample = model.generate(torch.randint(0, 5000, (1, 8)).cuda(), 16)
