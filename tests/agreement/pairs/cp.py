"""A Llama whose sequences are divided by context_parallel: ``cp.py CONFIG [tp]``."""

import contextlib
import sys

import torch
from accelerate.big_modeling import _attach_context_parallel_hooks
from sharded import begin, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

world, model = begin()
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


@contextlib.contextmanager
def forward(tokens, labels):
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    places = torch.arange(128, device="cuda").expand(2, -1)
    buffers = [tokens, labels, shifted, places]
    with context_parallel(
        mesh["cp"], buffers=buffers, buffer_seq_dims=[1] * 4, no_restore_buffers=set(buffers)
    ):
        yield model(input_ids=tokens, labels=labels, shift_labels=shifted, position_ids=places)


train(model, forward)
