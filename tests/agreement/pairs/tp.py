"""A model that transformers divides by its own plan: ``tp.py CONFIG`` on ranks of one group."""

from sharded import begin, train
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

world, model = begin()
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=world))
apply_tensor_parallelism(model, mesh, plan)
train(model)
