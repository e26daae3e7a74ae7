"""DistributedDataParallel on two GPUs."""

import sys

import torch
from own_loop import train
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM

torch.distributed.init_process_group("nccl")
config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config).to("cuda").train()
model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
train(model, optimizer, config.vocab_size)
torch.distributed.destroy_process_group()
