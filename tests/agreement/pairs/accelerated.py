"""A loop around accelerate's Accelerator, with clipping."""

import sys

import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM

accelerator = Accelerator(mixed_precision="bf16")
config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(4):
    batch = {
        name: torch.randint(config.vocab_size, (2, 128), device="cuda")
        for name in ("input_ids", "labels")
    }
    outputs = model(**batch)
    loss = outputs.loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
