"""Seq2SeqTrainer of a T5 with predict_with_generate, beams in evaluation and Adafactor."""

import numpy as np
import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

draw = np.random.default_rng(3)


def rows(count):
    made = []
    for _ in range(count):
        source = draw.integers(2, 3000, int(draw.integers(20, 64))).tolist() + [1]
        target = draw.integers(2, 3000, int(draw.integers(8, 30))).tolist() + [1]
        made.append({"input_ids": source, "labels": target})
    return made


def collate(batch):
    def padded(key, fill):
        width = max(len(row[key]) for row in batch)
        return torch.tensor([row[key] + [fill] * (width - len(row[key])) for row in batch])

    ids = padded("input_ids", 0)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": padded("labels", -100),
    }


def metrics(found):
    predictions, labels = found
    labels = np.where(labels != -100, labels, 0)
    return {"gen_len": float(np.mean([np.count_nonzero(row) for row in predictions]))}


config = T5Config(
    vocab_size=3000,
    d_model=192,
    d_kv=32,
    d_ff=512,
    num_layers=3,
    num_heads=6,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
)
model = T5ForConditionalGeneration(config)
arguments = Seq2SeqTrainingArguments(
    output_dir="t5",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    max_steps=3,
    eval_strategy="steps",
    eval_steps=2,
    predict_with_generate=True,
    generation_max_length=24,
    generation_num_beams=2,
    optim="adafactor",
    learning_rate=1e-3,
    report_to=[],
    disable_tqdm=True,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=arguments,
    train_dataset=rows(64),
    eval_dataset=rows(20),
    data_collator=collate,
    compute_metrics=metrics,
)
trainer.train()
print(trainer.predict(rows(10)).metrics)
