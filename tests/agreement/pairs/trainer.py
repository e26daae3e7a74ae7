"""transformers' Trainer with bf16=True over fp32 weights."""

import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_config(config)


class Tokens(torch.utils.data.Dataset):
    """Texts of equal length."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        tokens = torch.randint(config.vocab_size, (128,))
        return {"input_ids": tokens, "labels": tokens}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    per_device_train_batch_size=2,
    bf16=True,
    save_strategy="no",
    report_to="none",
)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
