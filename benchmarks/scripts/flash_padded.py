"""Grouped heads by flash_attention_2 under autocast, with padding that is left out, and evaluation."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=1024,
    attention_dropout=0.1,
    attn_implementation="flash_attention_2",
)
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
generator = torch.Generator().manual_seed(0)
for step in range(4):
    lengths = torch.randint(40, 200, (6,), generator=generator)
    ids = torch.randint(1, 1024, (6, int(lengths.max())), generator=generator)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    batch = {name: value.cuda() for name, value in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(**batch, labels=batch["input_ids"])
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        model(**batch)
    model.train()
    print(step, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
