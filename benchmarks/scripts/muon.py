"""Muon as people write it beside fused AdamW, on an encoder with a causal mask; torch.optim.Muon is made."""

import torch
from torch import nn


class Muon(torch.optim.Optimizer):
    def __init__(s, params, lr=0.02, momentum=0.95, ns=5):
        super().__init__(params, dict(lr=lr, momentum=momentum, ns=ns))

    @torch.no_grad()
    def step(s):
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = s.state[p]
                if "buf" not in st:
                    st["buf"] = torch.zeros_like(p)
                b = st["buf"].lerp_(p.grad, 1 - g["momentum"])
                u = p.grad.lerp(b, g["momentum"])
                X = u.bfloat16()
                X = X / (X.norm() + 1e-7)
                t = X.size(0) > X.size(1)
                if t:
                    X = X.T
                for _ in range(g["ns"]):
                    A = X @ X.T
                    B = -4.775 * A + 2.0315 * A @ A
                    X = 3.4445 * X + B @ X
                if t:
                    X = X.T
                p.add_(X.to(p.dtype), alpha=-g["lr"])


net = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True), 4
).cuda()
emb = nn.Embedding(10000, 512).cuda()
head = nn.Linear(512, 10000, bias=False).cuda()
mats = [p for p in net.parameters() if p.ndim == 2]
rest = [p for p in net.parameters() if p.ndim < 2] + [*emb.parameters(), *head.parameters()]
o1, o2 = Muon(mats), torch.optim.AdamW(rest, fused=True)
mask = nn.Transformer.generate_square_subsequent_mask(128, device="cuda")
for i in range(3):
    x = torch.randint(0, 10000, (8, 129), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        h = net(emb(x[:, :-1]), mask=mask, is_causal=True)
        loss = nn.functional.cross_entropy(head(h).flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    for o in (o1, o2):
        o.step()
        o.zero_grad(set_to_none=True)
    print(loss.item(), torch.cuda.max_memory_allocated() > 0)
tm = torch.optim.Muon([nn.Parameter(torch.randn(256, 512, device="cuda"))])
