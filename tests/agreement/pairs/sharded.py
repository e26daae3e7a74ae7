"""What scripts over a mesh of GPUs have in common: a model on meta, its shards, a loop."""

import contextlib
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def begin():
    """Join the ranks; return how many there are, and the model of the first argument on meta."""
    torch.distributed.init_process_group("nccl")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    with torch.device("meta"):
        return world, AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1]))


def train(model, loss_of=None):
    """Give a sharded model its memory, and train; ``loss_of`` takes tokens and labels."""

    def forward(tokens, labels):
        return contextlib.nullcontext(model(input_ids=tokens, labels=labels))

    loss_of = loss_of or forward
    model.to_empty(device="cuda")
    for buffer in model.buffers():
        buffer.fill_(1.0)
    kinds = {}
    for parameter in model.parameters():
        kinds.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds.values()], lr=1e-4)
    size = model.config.vocab_size
    for _ in range(4):
        tokens, labels = (torch.randint(size, (2, 128), device="cuda") for _ in range(2))
        with loss_of(tokens, labels) as outputs:
            loss = outputs.loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()
