"""Classification with accelerate, as run_glue_no_trainer does it."""

import math

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import Dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    SchedulerType,
    get_scheduler,
)

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, cpu=False)
set_seed(1)
rng = np.random.default_rng(0)
rows = [
    {"input_ids": rng.integers(5, 1000, rng.integers(10, 96)).tolist(), "labels": int(i % 3)}
    for i in range(160)
]
data = Dataset.from_list(rows).train_test_split(test_size=30, seed=0)


def collate(batch):
    longest = max(len(row["input_ids"]) for row in batch)
    longest = -(-longest // 8) * 8
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    for i, row in enumerate(batch):
        ids[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
        mask[i, : len(row["input_ids"])] = 1
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.tensor([row["labels"] for row in batch]),
    }


train = DataLoader(data["train"], shuffle=True, collate_fn=collate, batch_size=8)
held = DataLoader(data["test"], collate_fn=collate, batch_size=8)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=1024,
        num_labels=3,
    )
)
no_decay = ["bias", "LayerNorm.weight"]
groups = [
    {
        "params": [p for n, p in model.named_parameters() if not any(d in n for d in no_decay)],
        "weight_decay": 0.01,
    },
    {
        "params": [p for n, p in model.named_parameters() if any(d in n for d in no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = torch.optim.AdamW(groups, lr=5e-5)
epochs = 2
steps = math.ceil(len(train) / accelerator.gradient_accumulation_steps) * epochs
lr_scheduler = get_scheduler(
    name=SchedulerType.LINEAR,
    optimizer=optimizer,
    num_warmup_steps=2 * accelerator.num_processes,
    num_training_steps=steps,
)
model, optimizer, train, held, lr_scheduler = accelerator.prepare(
    model, optimizer, train, held, lr_scheduler
)
progress = tqdm(range(steps), disable=not accelerator.is_local_main_process)
done = 0
for epoch in range(epochs):
    model.train()
    total_loss = 0
    for step, batch in enumerate(train):
        with accelerator.accumulate(model):
            outputs = model(**batch)
            loss = outputs.loss
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            progress.update(1)
            done += 1
            if done % 5 == 0:
                accelerator.save_state(f"step_{done}")
    model.eval()
    right = seen = 0
    for batch in held:
        with torch.no_grad():
            outputs = model(**batch)
        predictions = outputs.logits.argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
        right += (predictions == references).sum().item()
        seen += references.shape[0]
    accelerator.print(f"epoch {epoch}: {right / seen} {total_loss.item() / len(train)}")
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(
        f"epoch_{epoch}",
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
    )
accelerator.load_state(f"step_{5}")
accelerator.wait_for_everyone()
accelerator.end_training()
