"""QLoRA as peft's documentation has it: a base in 4 bit, prepared, adapters, paged AdamW."""

import sys
import tempfile

import bitsandbytes
import torch
from own_loop import train
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

config, folder = AutoConfig.from_pretrained(sys.argv[1]), tempfile.mkdtemp()
AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(
    folder,
    quantization_config=BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    ),
    device_map={"": 0},
    dtype=torch.bfloat16,
)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
model.train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = bitsandbytes.optim.PagedAdamW8bit(trained, lr=1e-4)
train(model, optimizer, config.vocab_size)
