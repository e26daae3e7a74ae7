"""Operators of one's own: kernels in Python and in Triton, with and without a fake one."""

import torch
import triton
import triton.language as tl
from torch import nn
from torch.library import custom_op, triton_op, wrap_triton

WIDTH = 640


@custom_op("own::gated", mutates_args=())
def gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    open_ = torch.sigmoid(gate.float())
    return (x.float() * open_).to(x.dtype)


@gated.register_fake
def _(x, gate):
    return torch.empty_like(x)


@custom_op("own::gated_backward", mutates_args=())
def gated_backward(
    grad: torch.Tensor, x: torch.Tensor, gate: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    open_ = torch.sigmoid(gate.float())
    wide = grad.float()
    return (wide * open_).to(x.dtype), (wide * x.float() * open_ * (1 - open_)).to(gate.dtype)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


gated.register_autograd(lambda ctx, g: gated_backward(g, *ctx.saved_tensors), setup_context=keep)


@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@triton_op("own::scaled", mutates_args={})
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    y, n = torch.empty_like(x), x.numel()
    wrap_triton(scale)[(triton.cdiv(n, 1024),)](x, y, n, factor, BLOCK=1024)
    return y


scaled.register_autograd(
    lambda ctx, grad: (scaled(grad, ctx.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)
library = torch.library.Library("own_too", "DEF")
library.define("centre_(Tensor(a!) x) -> ()")


@torch.library.impl(library, "centre_", "CUDA")
def centre_(x):
    x.sub_(x.mean(0, keepdim=True).expand_as(x).contiguous())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + scaled(self.down(gated(self.up(x), self.gate(x))), 0.5)


def main():
    model = nn.Sequential(Block(), Block(), Block()).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(700, WIDTH).cuda().bfloat16()
        torch.ops.own_too.centre_(x)
        loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
