"""Token classification: Trainer with compute_metrics, the best model loaded at the end, warmup."""

import numpy as np
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForTokenClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        draw = np.random.default_rng(seed)
        self.rows = []
        for _ in range(count):
            n = int(draw.integers(12, 90))
            self.rows.append((draw.integers(4, 6000, n), draw.integers(0, len(LABELS), n)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        ids, tags = self.rows[at]
        return {"input_ids": ids.tolist(), "labels": tags.tolist()}


def collate(rows):
    width = -(-max(len(r["input_ids"]) for r in rows) // 8) * 8
    pad = lambda values, fill: values + [fill] * (width - len(values))  # noqa: E731
    return {
        "input_ids": torch.tensor([pad(r["input_ids"], 0) for r in rows]),
        "attention_mask": torch.tensor([pad([1] * len(r["input_ids"]), 0) for r in rows]),
        "labels": torch.tensor([pad(r["labels"], -100) for r in rows]),
    }


def metrics(prediction):
    logits, labels = prediction
    found = np.argmax(logits, axis=-1)
    seen = labels != -100
    right = (found == labels) & seen
    return {"accuracy": float(right.sum() / max(1, seen.sum()))}


config = DistilBertConfig(
    vocab_size=6000, dim=256, n_layers=4, n_heads=8, hidden_dim=1024, num_labels=len(LABELS)
)
model = DistilBertForTokenClassification(config)
arguments = TrainingArguments(
    output_dir="ner",
    learning_rate=3e-5,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=32,
    num_train_epochs=2,
    weight_decay=0.01,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    load_best_model_at_end=True,
    metric_for_best_model="accuracy",
    logging_steps=2,
    report_to="none",
    bf16=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Sentences(64, 0),
    eval_dataset=Sentences(70, 1),
    data_collator=collate,
    compute_metrics=metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
)
trainer.train()
print(trainer.evaluate())
trainer.save_model("ner/best")
trainer.save_state()
