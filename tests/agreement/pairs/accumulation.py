"""Gradients of three micro-batches under autocast in fp16, with a scaler and clipping."""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config).to("cuda").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(4):
    for _ in range(3):
        batch = {
            name: torch.randint(config.vocab_size, (2, 128), device="cuda")
            for name in ("input_ids", "labels")
        }
        with torch.autocast("cuda", dtype=torch.float16):
            outputs = model(**batch)
            loss = outputs.loss
        loss = loss / 3
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
