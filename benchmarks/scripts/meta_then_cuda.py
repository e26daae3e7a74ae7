"""A model made on the meta device, a head made on the GPU, pinned batches of several sizes."""

import torch
import torch.nn as nn

with torch.device("meta"):
    big = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
big.to_empty(device="cuda")
for p in big.parameters():
    nn.init.trunc_normal_(p, std=0.02)
with torch.device("cuda"):
    head = nn.Linear(512, 10)
    scale = torch.ones(1, requires_grad=True)
opt = torch.optim.NAdam(
    [{"params": big.parameters()}, {"params": head.parameters(), "lr": 1e-4}, {"params": [scale]}]
)
print(
    torch.cuda.mem_get_info()[1] > 0,
    torch.cuda.get_device_name(0),
    torch.cuda.get_device_capability(),
)
s = torch.cuda.Stream()
e0, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
sizes = [16, 64, 256, 128]
for n in sizes:
    e0.record()
    with torch.cuda.stream(s):
        x = torch.randn(n, 512, pin_memory=True).to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(s)
    x.record_stream(torch.cuda.current_stream())
    loss = (head(big(x)) * scale).logsumexp(-1).mean()
    opt.zero_grad(set_to_none=False)
    loss.backward()
    opt.step()
    e1.record()
    torch.cuda.synchronize()
    print(n, e0.elapsed_time(e1), loss.cpu().item())
    stats = torch.cuda.memory_stats()
    print(
        stats["allocation.all.current"] > 0,
        torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved(),
    )
    torch.cuda.reset_peak_memory_stats()
print(torch.cuda.memory_summary(abbreviated=True)[:40])
torch.cuda.empty_cache()
