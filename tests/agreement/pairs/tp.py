"""A model that transformers divides by its own plan: ``tp.py CONFIG`` on ranks of one group."""

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

torch.distributed.init_process_group("nccl")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
config = AutoConfig.from_pretrained(sys.argv[1])
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config)
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=world))
apply_tensor_parallelism(model, mesh, plan)
model.to_empty(device="cuda")
for buffer in model.buffers():
    buffer.fill_(1.0)
kinds = {}
for parameter in model.parameters():
    kinds.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds.values()], lr=1e-4)
for _ in range(4):
    tokens, labels = (torch.randint(config.vocab_size, (2, 128), device="cuda") for _ in range(2))
    outputs = model(input_ids=tokens, labels=labels)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
