"""A Llama whose sequences are divided by context_parallel: ``cp.py CONFIG [tp]``."""

import sys

import torch
from accelerate.big_modeling import _attach_context_parallel_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from transformers import AutoConfig, AutoModelForCausalLM

torch.distributed.init_process_group("nccl")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
config = AutoConfig.from_pretrained(sys.argv[1])
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config)
inner = 2 if "tp" in sys.argv else 1
mesh = init_device_mesh("cuda", (world // inner, inner), mesh_dim_names=("cp", "tp"))
_attach_context_parallel_hooks(model)
if inner > 1:
    columns = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    )
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tp"], plan)
    head = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, mesh["tp"], head)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh["cp"])
fully_shard(model, mesh=mesh["cp"])
model.to_empty(device="cuda")
for buffer in model.buffers():
    buffer.fill_(1.0)
kinds = {}
for parameter in model.parameters():
    kinds.setdefault(parameter.device_mesh, []).append(parameter)
optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds.values()], lr=1e-4)
for _ in range(4):
    tokens, labels = (torch.randint(config.vocab_size, (2, 128), device="cuda") for _ in range(2))
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    places = torch.arange(128, device="cuda").expand(2, -1)
    buffers = [tokens, labels, shifted, places]
    with context_parallel(
        mesh["cp"], buffers=buffers, buffer_seq_dims=[1] * 4, no_restore_buffers=set(buffers)
    ):
        outputs = model(input_ids=tokens, labels=labels, shift_labels=shifted, position_ids=places)
        loss = outputs.loss
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
