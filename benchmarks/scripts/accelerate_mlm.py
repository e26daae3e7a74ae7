"""Masked language modeling by accelerate: accumulation, gathered metrics, a saved state."""

import torch
from accelerate import Accelerator
from transformers import RobertaConfig, RobertaForMaskedLM, get_linear_schedule_with_warmup

acc = Accelerator(gradient_accumulation_steps=3, mixed_precision="bf16")
m = RobertaForMaskedLM(
    RobertaConfig(
        vocab_size=5000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
)
m.gradient_checkpointing_enable()
opt = torch.optim.AdamW(m.parameters(), lr=1e-4)


def batch(items):
    x = torch.stack(items)
    y = x.clone()
    p = torch.full(x.shape, 0.15)
    mask = torch.bernoulli(p).bool()
    y[~mask] = -100
    x[mask] = 4
    return dict(input_ids=x, labels=y)


dl = torch.utils.data.DataLoader(
    [torch.randint(5, 5000, (96,)) for _ in range(48)],
    batch_size=8,
    collate_fn=batch,
    num_workers=2,
)
sch = get_linear_schedule_with_warmup(opt, 1, 10)
m, opt, dl, sch = acc.prepare(m, opt, dl, sch)
for ep in range(2):
    m.train()
    for b in dl:
        with acc.accumulate(m):
            loss = m(**b).loss
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(m.parameters(), 1.0)
            opt.step()
            sch.step()
            opt.zero_grad()
    m.eval()
    ls = []
    for b in dl:
        with torch.no_grad():
            ls.append(acc.gather_for_metrics(m(**b).loss.repeat(8)))
    acc.print(torch.cat(ls).mean().exp().item())
acc.wait_for_everyone()
acc.save_state("ck")
acc.load_state("ck")
