"""litgpt: a small GPT in bf16, its loss in chunks.

Requires: --no-deps litgpt lightning lightning-utilities torchmetrics pytorch-lightning
"""

import torch
from litgpt import GPT, Config
from litgpt.utils import chunked_cross_entropy

model = (
    GPT(
        Config(
            name="x",
            block_size=128,
            vocab_size=1000,
            padded_vocab_size=1024,
            n_layer=2,
            n_head=4,
            n_embd=128,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
            intermediate_size=344,
        )
    )
    .cuda()
    .bfloat16()
)
opt = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
for i in range(5):
    ids = torch.randint(0, 1000, (4, 129)).cuda()
    loss = chunked_cross_entropy(model(ids[:, :-1]), ids[:, 1:], chunk_size=64)
    loss.backward()
    opt.step()
    opt.zero_grad()
