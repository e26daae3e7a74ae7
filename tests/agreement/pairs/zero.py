"""DeepSpeed on two GPUs: ``zero.py CONFIG STAGE``."""

import sys

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config).train()
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": int(sys.argv[2])},
    },
)
for _ in range(4):
    batch = {
        name: torch.randint(config.vocab_size, (2, 128), device="cuda")
        for name in ("input_ids", "labels")
    }
    outputs = engine(**batch)
    loss = outputs.loss
    engine.backward(loss)
    engine.step()
