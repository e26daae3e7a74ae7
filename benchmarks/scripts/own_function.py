"""Autograd functions of one's own that save less, and an optimizer of one's own."""

import torch
from torch import nn
from torch.optim import Optimizer


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class Quantize(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, levels):
        ctx.levels = levels
        return torch.round(x * levels) / levels

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        return grad.clamp(-1, 1), None


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = m.clone().mul_(b1).add(p.grad, alpha=1 - b1).sign_()
                p.add_(update, alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(768, 768) for _ in range(6)])
        self.register_buffer("scale", torch.ones(768))

    def forward(self, x):
        for layer in self.layers:
            x = Swish.apply(layer(x)) * self.scale
        return Quantize.apply(x, 16)


net = Net().cuda()
optimizer = Lion(net.parameters())
for _ in range(3):
    with torch.autocast("cuda", torch.bfloat16):
        loss = (net(torch.randn(1024, 768, device="cuda")) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
