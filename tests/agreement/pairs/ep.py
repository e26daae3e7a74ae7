"""A mixture of experts that transformers divides: ``ep.py CONFIG`` on ranks that shard the rest."""

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism

torch.distributed.init_process_group("nccl")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
config = AutoConfig.from_pretrained(sys.argv[1])
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config)
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("fsdp",))
alone = init_device_mesh("cuda", (world, 1), mesh_dim_names=("all", "tp"))
experts = init_device_mesh("cuda", (1, world), mesh_dim_names=("efsdp", "ep"))
_, plan, _ = model._resolve_parallel_plans(DistributedConfig(fsdp_size=world, ep_size=world))
apply_expert_parallelism(model, experts["ep"], alone["tp"], plan)
for layer in model.model.layers:
    fully_shard(layer.mlp.experts, mesh=experts["efsdp"])
    layer.mlp.experts.set_gradient_divide_factor(float(world))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cuda")
for buffer in model.buffers():
    buffer.fill_(1.0)
kinds = {}
for parameter in model.parameters():
    kinds.setdefault(parameter.device_mesh, []).append(parameter)
optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds.values()], lr=1e-4)
for _ in range(4):
    tokens, labels = (torch.randint(config.vocab_size, (2, 128), device="cuda") for _ in range(2))
    outputs = model(input_ids=tokens, labels=labels)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
