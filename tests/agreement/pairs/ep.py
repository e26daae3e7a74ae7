"""A mixture of experts that transformers divides: ``ep.py CONFIG`` on ranks that shard the rest."""

from sharded import begin, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism

world, model = begin()
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
train(model)
