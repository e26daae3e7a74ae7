"""fp16 with GradScaler: two losses, unscale_ for each of two optimizers, accumulation, inf checks."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast

device = "cuda"
encoder = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True, norm_first=True),
    3,
    enable_nested_tensor=False,
).to(device)
words, head = nn.Embedding(6000, 256).to(device), nn.Linear(256, 6000).to(device)
sparse = torch.optim.Adagrad(words.parameters(), lr=0.1)
dense = torch.optim.RAdam([*encoder.parameters(), *head.parameters()], lr=1e-3)
scaler = GradScaler(init_scale=2.0**14, growth_interval=2)
accumulate = 2
for step in range(6):
    ids = torch.randint(0, 6000, (8, 128), device=device)
    with autocast("cuda", dtype=torch.float16):
        hidden = encoder(
            words(ids),
            mask=nn.Transformer.generate_square_subsequent_mask(128, device=device),
            is_causal=True,
        )
        logits = head(hidden)
        loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 6000), ids[:, 1:].reshape(-1))
        z = 1e-4 * torch.logsumexp(logits.float(), -1).pow(2).mean()
    scaler.scale(loss / accumulate).backward(retain_graph=True)
    scaler.scale(z / accumulate).backward()
    if (step + 1) % accumulate == 0:
        for optimizer in (sparse, dense):
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(
            [*encoder.parameters(), *head.parameters(), *words.parameters()], 1.0
        )
        if not torch.isfinite(norm):
            print("skipped", norm)
        for optimizer in (sparse, dense):
            scaler.step(optimizer)
        scaler.update()
        for optimizer in (sparse, dense):
            optimizer.zero_grad(set_to_none=True)
    print(step, loss.detach().item(), scaler.get_scale())
