"""DistributedDataParallel on two GPUs."""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM

torch.distributed.init_process_group("nccl")
config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config).to("cuda").train()
model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(4):
    batch = {
        name: torch.randint(config.vocab_size, (2, 128), device="cuda")
        for name in ("input_ids", "labels")
    }
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
