"""Adapters on a base in 8 bit, under checkpointing as peft turns it on."""

import sys
import tempfile

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

config, folder = AutoConfig.from_pretrained(sys.argv[1]), tempfile.mkdtemp()
AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(
    folder,
    quantization_config=BitsAndBytesConfig(load_in_8bit=True),
    device_map={"": 0},
    dtype=torch.bfloat16,
)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
model.train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
for _ in range(4):
    batch = {
        name: torch.randint(config.vocab_size, (2, 128), device="cuda")
        for name in ("input_ids", "labels")
    }
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
