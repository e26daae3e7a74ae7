"""transformers' Trainer on a classifier: fp16, padded batches, checkpoints of which one is kept."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    hidden_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=1024,
    vocab_size=5000,
    num_labels=3,
)
rows = [
    {"input_ids": torch.randint(5, 5000, (n % 60 + 20,)).tolist(), "labels": n % 3}
    for n in range(48)
]


def collate(items):
    width = max(len(item["input_ids"]) for item in items)
    ids = torch.tensor(
        [item["input_ids"] + [0] * (width - len(item["input_ids"])) for item in items]
    )
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([item["labels"] for item in items]),
    }


arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    num_train_epochs=1,
    max_steps=4,
    fp16=True,
    save_strategy="steps",
    save_steps=2,
    save_total_limit=1,
    max_grad_norm=0.5,
    warmup_steps=1,
    report_to=[],
    disable_tqdm=True,
)
model = BertForSequenceClassification(config)
trainer = Trainer(model, arguments, train_dataset=rows, data_collator=collate)
trainer.train()
trainer.save_model("final")
