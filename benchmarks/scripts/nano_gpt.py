"""A small GPT as people write it: tied weights, accumulation, bf16 context, loss estimation."""

import contextlib
import inspect

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, BLOCK, LAYERS, HEADS, WIDTH = 5000, 256, 4, 4, 256


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True
        )
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = SelfAttention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init)

    def _init(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )


def get_batch(data, batch=8):
    ix = torch.randint(len(data) - BLOCK, (batch,))
    x = torch.stack([data[i : i + BLOCK] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in ix])
    return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to(
        "cuda", non_blocking=True
    )


device_type = "cuda" if torch.cuda.is_available() else "cpu"
ctx = (
    contextlib.nullcontext()
    if device_type == "cpu"
    else torch.amp.autocast(device_type, torch.bfloat16)
)
data = torch.randint(0, VOCAB, (20000,))
model = GPT()
model.to("cuda")
named = {n: p for n, p in model.named_parameters() if p.requires_grad}
groups = [
    {"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": 0.1},
    {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
]
fused = "fused" in inspect.signature(torch.optim.AdamW).parameters and device_type == "cuda"
optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=fused)
scaler = torch.amp.GradScaler(device_type, enabled=False)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(2)
    for k in range(2):
        with ctx:
            _, loss = model(*get_batch(data))
        losses[k] = loss.item()
    model.train()
    return losses.mean()


X, Y = get_batch(data)
for iteration in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * (iteration + 1) / 100
    if iteration % 2 == 0:
        print(f"step {iteration}: loss {estimate_loss():.4f}")
    for micro in range(2):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / 2
        X, Y = get_batch(data)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
