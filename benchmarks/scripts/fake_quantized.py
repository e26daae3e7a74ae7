"""Autograd functions of the script: fake quantization, activations kept in fp8."""

import torch
from torch.autograd import Function


class FakeQuant(Function):
    @staticmethod
    def forward(ctx, w, bits):
        s = w.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
        q = torch.round(w / s.clamp(min=1e-8))
        ctx.save_for_backward(w, s)
        ctx.mark_non_differentiable(q)
        return q * s, q

    @staticmethod
    def backward(ctx, gy, gq):
        w, s = ctx.saved_tensors
        return gy * (w.abs() <= s * 127), None


class MemLinear(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x.to(torch.float8_e4m3fn), w)
        ctx.dt = x.dtype
        return x @ w.t() + b

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        x = x.to(ctx.dt)
        g2 = g.reshape(-1, g.shape[-1])
        return g @ w, g2.t() @ x.reshape(-1, x.shape[-1]), g2.sum(0)


class L(torch.nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.weight = torch.nn.Parameter(torch.randn(o, i) * 0.02)
        s.bias = torch.nn.Parameter(torch.zeros(o))

    def forward(s, x):
        w, q = FakeQuant.apply(s.weight, 8)
        return MemLinear.apply(x, w, s.bias)


net = torch.nn.Sequential(L(256, 2048), torch.nn.GELU(), L(2048, 256)).cuda()
opt = torch.optim.RAdam(net.parameters(), 1e-3, foreach=False)
for i in range(3):
    x = torch.randn(16, 32, 256, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = (net(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(float(loss))
