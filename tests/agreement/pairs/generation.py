"""Sixteen tokens after a prompt, by transformers' generate."""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()
prompts = torch.randint(config.vocab_size, (2, 128), device="cuda")
batch = {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
with torch.no_grad():
    model.generate(**batch, max_new_tokens=16, do_sample=False, pad_token_id=config.eos_token_id)
