"""Stages by torch.distributed.pipelining: ``pp.py CONFIG SCHEDULE STAGES [fsdp2|ddp]``."""

import copy
import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM


class Stage(nn.Module):
    def __init__(self, whole, number, count):
        super().__init__()
        each = len(whole.model.layers) // count
        self.first, self.last = number == 0, number == count - 1
        model = copy.deepcopy(whole)
        model.model.layers = model.model.layers[number * each : (number + 1) * each]
        model.model.config.num_hidden_layers = each
        if not self.first:
            model.model.embed_tokens = None
        if not self.last:
            model.model.norm, model.lm_head = nn.Identity(), None
        self.model = model

    def forward(self, passed):
        given = {"input_ids" if self.first else "inputs_embeds": passed}
        hidden = self.model.model(**given, use_cache=False).last_hidden_state
        return self.model.lm_head(hidden) if self.last else hidden


torch.distributed.init_process_group("nccl")
path, name, stages, *inner = sys.argv[1:]
rank, world, stages = torch.distributed.get_rank(), torch.distributed.get_world_size(), int(stages)
torch.cuda.set_device(rank % torch.cuda.device_count())
device = torch.device("cuda", torch.cuda.current_device())
config = AutoConfig.from_pretrained(path)
with torch.device("meta"):
    whole = AutoModelForCausalLM.from_config(config)
mesh = init_device_mesh("cuda", (stages, world // stages), mesh_dim_names=("pp", "dp"))
kind, at = get_schedule_class(name), mesh["pp"].get_local_rank()
single = issubclass(kind, PipelineScheduleSingle)
count = stages if single else 2 * stages
numbers = range(at, count, stages)
if name in ("ZBVZeroBubble", "DualPipeV"):
    numbers = at, count - 1 - at
parts = [Stage(whole, number, count) for number in numbers]
for place, part in enumerate(parts):
    if inner == ["fsdp2"]:
        for layer in part.model.model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(part, mesh=mesh["dp"])
    part.to_empty(device=device)
    for buffer in part.buffers():
        buffer.fill_(1.0)
    if inner == ["ddp"]:
        parts[place] = DistributedDataParallel(
            part, device_ids=[device.index], process_group=mesh["dp"].get_group()
        )
made = [
    PipelineStage(part, number, count, device, group=mesh["pp"].get_group())
    for number, part in zip(numbers, parts, strict=True)
]


def loss_of(logits, labels):
    return whole.loss_function(logits=logits, labels=labels, vocab_size=config.vocab_size)


schedule = kind(made[0] if single else made, n_microbatches=8, loss_fn=loss_of)
optimizer = torch.optim.AdamW(
    [parameter for part in parts for parameter in part.parameters()], lr=1e-4
)
for _ in range(4):
    tokens, labels = (torch.randint(config.vocab_size, (8, 128), device=device) for _ in range(2))
    given = [tokens] if 0 in numbers else []
    last = count - 1 in numbers
    losses = []
    schedule.step(
        *given, target=labels if last else None, losses=losses if last else None,
        return_outputs=False,
    )  # fmt: skip
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
