"""Warm-up on a side stream, as before a CUDA graph is captured, then on the main one."""

import torch
import torch.nn as nn

m = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
opt = torch.optim.Adam(m.parameters(), 1e-3, capturable=True)
sx = torch.randn(64, 256, device="cuda")
sy = torch.randn(64, 256, device="cuda")
s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(m(sx), sy)
        loss.backward()
        opt.step()
torch.cuda.current_stream().wait_stream(s)
for i in range(3):
    sx.copy_(torch.randn(64, 256))
    sy.copy_(torch.randn(64, 256))
    opt.zero_grad()
    loss = nn.functional.mse_loss(m(sx), sy)
    loss.backward()
    opt.step()
    print(loss.item())
