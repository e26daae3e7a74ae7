"""A loop that records memory history, times itself with events, and dumps a snapshot."""

import torch
from torch import nn

torch.cuda.memory._record_memory_history(max_entries=1000)
m = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True), 4
).cuda()
h = nn.Linear(256, 10).cuda()
o = torch.optim.AdamW([*m.parameters(), *h.parameters()], fused=True)
s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for i in range(4):
    s.record()
    x = torch.randn(16, 128, 256).pin_memory().to("cuda", non_blocking=True)
    pad = torch.zeros(16, 128, dtype=torch.bool, device="cuda")
    pad[:, 100:] = True
    torch.cuda.nvtx.range_push("step")
    l = nn.functional.cross_entropy(
        h(m(x, src_key_padding_mask=pad).mean(1)), torch.randint(10, (16,), device="cuda")
    )
    l.backward()
    o.step()
    o.zero_grad(set_to_none=False)
    torch.cuda.nvtx.range_pop()
    e.record()
    torch.cuda.synchronize()
    print(
        s.elapsed_time(e) >= 0,
        torch.cuda.max_memory_allocated() > 0,
        torch.cuda.memory_reserved(),
        len(torch.cuda.memory_summary()) > 100,
    )
    torch.cuda.reset_peak_memory_stats()
torch.cuda.memory._dump_snapshot("snap.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
