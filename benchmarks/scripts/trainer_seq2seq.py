"""A Seq2SeqTrainer that evaluates by generating with beams."""

import torch
from torch.utils.data import Dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)


class D(Dataset):
    def __len__(s):
        return 24

    def __getitem__(s, i):
        return dict(
            input_ids=torch.randint(5, 2000, (96,)),
            attention_mask=torch.ones(96, dtype=torch.long),
            labels=torch.randint(5, 2000, (32,)),
        )


m = T5ForConditionalGeneration(
    T5Config(
        vocab_size=2000,
        d_model=256,
        d_ff=1024,
        num_layers=3,
        num_heads=4,
        d_kv=64,
        decoder_start_token_id=0,
    )
)
a = Seq2SeqTrainingArguments(
    "out",
    per_device_train_batch_size=4,
    max_steps=4,
    eval_strategy="steps",
    eval_steps=2,
    bf16=True,
    optim="adafactor",
    save_strategy="no",
    report_to=[],
    predict_with_generate=True,
    generation_max_length=12,
    generation_num_beams=2,
    gradient_checkpointing=True,
)
t = Seq2SeqTrainer(
    m,
    a,
    train_dataset=D(),
    eval_dataset=D(),
    compute_metrics=lambda p: {"n": float(p.predictions.shape[1] > 0)},
)
t.train()
print(t.evaluate())
