"""A model and a loss under torch.compile, which is switched off."""

import torch
import torch.nn as nn

torch._dynamo.config.suppress_errors = True
torch._dynamo.config.disable = True


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

    def forward(s, x):
        for l in s.l:
            x = x + torch.nn.functional.silu(l(x))
        return x


m = torch.compile(M().cuda(), mode="max-autotune")


@torch.compile
def loss_fn(o, t):
    return ((o - t) ** 2).mean()


opt = torch.optim.AdamW(m.parameters(), 1e-3)
for i in range(3):
    x = torch.randn(256, 512, device="cuda")
    l = loss_fn(m(x), x)
    l.backward()
    opt.step()
    opt.zero_grad()
    print(l.item())
