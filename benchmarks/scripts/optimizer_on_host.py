"""Master weights and AdamW on the host: gradients leave in hooks, on a stream of their own."""

import torch
from torch import nn

m = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True, dropout=0.0),
    3,
    enable_nested_tensor=False,
).to("cuda", torch.bfloat16)
master = {
    n: p.detach().float().cpu().pin_memory().requires_grad_() for n, p in m.named_parameters()
}
optimizer = torch.optim.AdamW(master.values(), 1e-3)
s = torch.cuda.Stream()
bufs = {
    n: torch.empty_like(p, dtype=torch.bfloat16, device="cpu", pin_memory=True)
    for n, p in m.named_parameters()
}


def hook(n):
    def f(p):
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            bufs[n].copy_(p.grad, non_blocking=True)
            p.grad.record_stream(s)
        p.grad = None

    return f


for n, p in m.named_parameters():
    p.register_post_accumulate_grad_hook(hook(n))
for i in range(3):
    x = torch.randn(8, 64, 128).to("cuda", torch.bfloat16)
    loss = m(x).float().pow(2).mean()
    loss.backward()
    s.synchronize()
    for n, p in master.items():
        p.grad = bufs[n].float()
    torch.nn.utils.clip_grad_norm_(list(master.values()), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for n, p in m.named_parameters():
            p.copy_(master[n], non_blocking=True)
    print(loss.item(), torch.cuda.memory_allocated())
