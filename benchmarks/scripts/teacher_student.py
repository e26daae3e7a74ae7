"""Distillation: a larger teacher in half precision under no_grad, KL on logits, hidden states too."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForMaskedLM

device = "cuda" if torch.cuda.is_available() else "cpu"
shape = {"vocab_size": 4000, "intermediate_size": 1024, "num_attention_heads": 8}
teacher = BertForMaskedLM(BertConfig(hidden_size=512, num_hidden_layers=6, **shape))
student = BertForMaskedLM(BertConfig(hidden_size=256, num_hidden_layers=3, **shape))
teacher = teacher.half().to(device).eval()
for p in teacher.parameters():
    p.requires_grad_(False)
student = student.to(device).train()
bridge = nn.Linear(256, 512).to(device)

data = torch.randint(5, 4000, (96, 64))
loader = DataLoader(TensorDataset(data), batch_size=16, shuffle=True, pin_memory=True)
parameters = [*student.parameters(), *bridge.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=5e-4, fused=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
T = 2.0
for epoch in range(2):
    total = 0.0
    for step, (ids,) in enumerate(loader):
        if step == 3:
            break
        ids = ids.to(device, non_blocking=True)
        masked = torch.rand(ids.shape, device=device) < 0.15
        inputs = ids.masked_fill(masked, 4)
        labels = ids.masked_fill(~masked, -100)
        with torch.inference_mode():
            taught = teacher(inputs, output_hidden_states=True)
        seen = taught.logits.float().clone()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = student(inputs, labels=labels, output_hidden_states=True)
            hint = F.mse_loss(
                bridge(out.hidden_states[-1]).float(), taught.hidden_states[-1].float().clone()
            )
        soft = F.kl_div(
            F.log_softmax(out.logits.float() / T, -1),
            F.softmax(seen / T, -1),
            reduction="batchmean",
        )
        loss = 0.5 * T * T * soft + 0.3 * out.loss + 0.2 * hint
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        total += loss.item()
    print(epoch, total)
