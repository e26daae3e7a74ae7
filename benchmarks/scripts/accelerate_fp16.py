"""accelerate: fp16, accumulation, an optimizer that is made before prepare, gathered metrics."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model = BertForSequenceClassification(
    BertConfig(num_hidden_layers=2, hidden_size=384, num_attention_heads=6, intermediate_size=1536)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
rows = [
    {
        "input_ids": torch.randint(0, 1000, (128,)),
        "labels": torch.tensor(n % 2),
        "attention_mask": torch.ones(128, dtype=torch.long),
    }
    for n in range(64)
]
loader = DataLoader(rows, batch_size=8, shuffle=True, pin_memory=True)
schedule = get_linear_schedule_with_warmup(optimizer, 1, 10)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
model.train()
for index, batch in enumerate(loader):
    with accelerator.accumulate(model):
        out = model(**batch)
        accelerator.backward(out.loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if index == 7:
        break
guesses = accelerator.gather_for_metrics(out.logits.argmax(-1))
print("guesses", guesses.cpu().numpy().shape, f"{out.loss.item():.3f}")
accelerator.save_state("state")
