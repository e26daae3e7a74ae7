"""transformers' Trainer: gradient checkpointing, Adafactor, a model in bf16, t5."""

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

config = T5Config(
    vocab_size=4000,
    d_model=256,
    d_kv=32,
    d_ff=512,
    num_layers=3,
    num_heads=8,
    decoder_start_token_id=0,
)
model = T5ForConditionalGeneration(config).to(torch.bfloat16)
rows = [
    {
        "input_ids": torch.arange(1, 129),
        "attention_mask": torch.ones(128, dtype=torch.long),
        "labels": torch.arange(1, 65),
    }
    for _ in range(32)
]
arguments = Seq2SeqTrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    max_steps=3,
    optim="adafactor",
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
Seq2SeqTrainer(model, arguments, train_dataset=rows).train()
