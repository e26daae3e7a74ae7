"""``torch.compile`` around a model, with a loop of one's own."""

import sys

import torch
from own_loop import train
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config).to("cuda").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model = torch.compile(model, mode="default")
train(model, optimizer, config.vocab_size)
