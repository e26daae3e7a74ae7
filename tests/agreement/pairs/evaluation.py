"""Training, then an evaluation that keeps the logits of each batch."""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def draw():
    """Make a batch."""
    return {
        name: torch.randint(config.vocab_size, (2, 128), device="cuda")
        for name in ("input_ids", "labels")
    }


config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config).to("cuda").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(4):
    batch = draw()
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
kept = []
model.eval()
with torch.no_grad():
    for _ in range(4):
        batch = draw()
        outputs = model(**batch)
        kept.append(outputs.logits)
