"""transformers' Trainer on a causal language model, bf16, fused AdamW, evaluation between steps."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(256) % 1000
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


config = LlamaConfig(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=8000,
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    max_steps=4,
    bf16=True,
    optim="adamw_torch_fused",
    eval_strategy="steps",
    eval_steps=2,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    dataloader_num_workers=2,
    disable_tqdm=True,
)
trainer = Trainer(
    LlamaForCausalLM(config),
    arguments,
    train_dataset=Tokens(),
    eval_dataset=[Tokens()[0] for _ in range(16)],
)
trainer.train()
