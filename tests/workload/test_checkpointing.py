"""Gradient checkpointing of models whose base is frozen."""

from functools import partial

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from memcalc.catalog.plan import make
from memcalc.workload.prepare import checkpoint


def test_adapters_under_reentrant_checkpointing_get_gradients():
    config = GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=8, vocab_size=16)
    model = GPT2LMHeadModel(config).train()
    model.requires_grad_(False)
    model.transformer.h[0].mlp.c_fc.weight.requires_grad_(True)
    # transformers 4 enables it so by itself.
    enable = model.gradient_checkpointing_enable
    model.gradient_checkpointing_enable = partial(enable, {"use_reentrant": True})
    checkpoint(model, make({"model": "gpt2", "checkpointing": True, "lora": "r=2"}))
    tokens = torch.zeros(1, 4, dtype=torch.long)
    model(tokens, labels=tokens).loss.backward()
    assert model.transformer.h[0].mlp.c_fc.weight.grad is not None
