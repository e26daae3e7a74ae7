"""Products in float8: what accelerate makes of ``mixed_precision="fp8"`` with torchao.

Gathering in float8 is of FSDP2. Without it, accelerate's default for that would give the layers new
parameters, which the optimizer that was made before does not have.
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import AORecipeKwargs
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.from_pretrained(sys.argv[1])
recipe = AORecipeKwargs(enable_fsdp_float8_all_gather=False)
accelerator = Accelerator(mixed_precision="fp8", kwargs_handlers=[recipe])
model = AutoModelForCausalLM.from_config(config).to(accelerator.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(4):
    batch = {
        name: torch.randint(config.vocab_size, (2, 128), device="cuda")
        for name in ("input_ids", "labels")
    }
    outputs = model(**batch)
    loss = outputs.loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
