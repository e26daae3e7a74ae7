"""FullyShardedDataParallel over LoRA, all of it in bf16 as recipes cast adapters."""

import functools
import sys

import torch
from own_loop import train
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import AutoConfig, AutoModelForCausalLM

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(torch.distributed.get_rank())
config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
layer = type(model.model.layers[0])
adapters = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
model = get_peft_model(model, adapters, autocast_adapter_dtype=False).train()
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={layer}),
    device_id=torch.cuda.current_device(),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
train(model, optimizer, config.vocab_size)
torch.distributed.destroy_process_group()
