"""transformers' Trainer with use_liger_kernel, bf16 autocast, checkpointing, a Qwen."""

import torch
from torch.utils.data import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(512) % 1000
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


config = Qwen2Config(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=20000,
    tie_word_embeddings=True,
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    max_steps=3,
    bf16=True,
    use_liger_kernel=True,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
Trainer(Qwen2ForCausalLM(config), arguments, train_dataset=Tokens()).train()
