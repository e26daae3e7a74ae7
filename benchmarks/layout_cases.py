"""Operators whose input, or the gradient of whose result, does not lie in rows.

They have the form of ``operator_cases``. CUDA copies some of these, and lays some results in rows
whatever it is given; a gradient that lies across costs whoever takes it next a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

LONG = torch.long
IMAGES, ROWS = (4, 16, 12, 12), (4, 32, 64)
INPUTS = {
    4: ("last", "across", "cut", "swapped"),
    3: ("across", "cut", "swapped"),
}
GRADIENTS = {4: ("rows", "last", "swapped"), 3: ("rows", "across", "swapped")}


def laid(shape: tuple[int, ...], how: str) -> tuple[tuple[int, ...], Callable[[Any], Any]]:
    """What to allocate, and how to see it as a tensor of this shape.

    Args:
        shape: of the tensor, (N, C, H, W) or (N, S, E).
        how: ``rows``; ``last``: channels last; ``across``: the last two dimensions are turned;
            ``swapped``: the first two are; ``cut``: rows are longer than what is seen of them.
    """
    if how == "last":
        return (shape[0], *shape[2:], shape[1]), lambda t: t.movedim(-1, 1)
    if how == "across":
        return (*shape[:-2], shape[-1], shape[-2]), lambda t: t.transpose(-1, -2)
    if how == "swapped":
        return (shape[1], shape[0], *shape[2:]), lambda t: t.transpose(0, 1)
    if how == "cut":
        return (*shape[:-1], shape[-1] + 4), lambda t: t[..., :-4]
    return shape, lambda t: t


class Given(torch.autograd.Function):
    """A gradient that lies so, whatever came before."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, how: str) -> torch.Tensor:
        ctx.how = how
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        whole, view = laid(tuple(grads[0].shape), ctx.how)
        return view(torch.empty(whole, dtype=grads[0].dtype, device=grads[0].device)), None


@dataclass(frozen=True, slots=True)
class LayoutCase:
    """One operator, and how its input and the gradient of its result lie."""

    name: str
    call: Callable[[torch.Tensor, Callable[..., torch.Tensor]], torch.Tensor]
    shape: tuple[int, ...]
    input: str
    gradient: str

    def inputs(self, device: str) -> list[torch.Tensor]:
        """The memory that the input is seen in."""
        whole, _ = laid(self.shape, self.input)
        return [torch.zeros(whole, device=device, requires_grad=True)]

    def run(self, whole: torch.Tensor) -> torch.Tensor:
        """The operator alone; its other arguments are made on the way."""
        _, view = laid(self.shape, self.input)

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            grown = dtype.is_floating_point
            return torch.zeros(shape, dtype=dtype, device=whole.device, requires_grad=grown)

        out = self.call(view(whole), make)
        if out.dim() not in GRADIENTS:
            return out
        return Given.apply(out, self.gradient)  # type: ignore[no-any-return,no-untyped-call]


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (4, 16)).transpose(1, 2)


def _attention(x: torch.Tensor, **options: Any) -> torch.Tensor:
    q, k, v = (_heads(x * number) for number in (1, 2, 3))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


OF_IMAGES: dict[str, Callable[..., torch.Tensor]] = {
    "layer_norm": lambda x, make: F.layer_norm(x, (12,), make(12), make(12)),
    "layer_norm of channels": lambda x, make: F.layer_norm(
        x.permute(0, 2, 3, 1), (16,), make(16), make(16)
    ).permute(0, 3, 1, 2),
    "group_norm": lambda x, make: F.group_norm(x, 4, make(16), make(16)),
    "batch_norm frozen": lambda x, make: F.batch_norm(
        x, make(16).detach(), make(16).detach(), make(16), make(16)
    ),
    "max_pool2d": lambda x, make: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x, make: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x, make: F.adaptive_avg_pool2d(x, 3),
    "nearest": lambda x, make: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x, make: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "antialias": lambda x, make: F.interpolate(
        x, scale_factor=0.5, mode="bilinear", antialias=True
    ),
    "pixel_shuffle": lambda x, make: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x, make: F.pixel_unshuffle(x, 2),
    "reflect": lambda x, make: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "unfold": lambda x, make: F.unfold(x, 3),
    "patches": lambda x, make: F.unfold(x, 2, stride=2),
    "log_softmax": lambda x, make: F.log_softmax(x, 1),
    "softmax": lambda x, make: F.softmax(x, 1),
    "glu": lambda x, make: F.glu(x, 1),
    **{
        name: lambda x, make, name=name: getattr(F, name)(x)
        for name in (
            *("relu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh", "relu6"),
            *("elu", "celu", "selu", "leaky_relu", "softplus", "logsigmoid", "tanh", "dropout"),
        )
    },
    "cumsum": lambda x, make: x.cumsum(1),
    "roll": lambda x, make: x.roll((2, 2), (2, 3)),
    "median": lambda x, make: x.median(1)[0],
    "topk": lambda x, make: x.topk(5, 1)[0],
    "kthvalue": lambda x, make: x.kthvalue(3, 1)[0],
    "index": lambda x, make: x[:, make(3, dtype=LONG)],
    "mse_loss": lambda x, make: F.mse_loss(x, make(*IMAGES).detach()),
    "smooth_l1_loss": lambda x, make: F.smooth_l1_loss(x, make(*IMAGES).detach()),
    "huber_loss": lambda x, make: F.huber_loss(x, make(*IMAGES).detach()),
    "fft": lambda x, make: torch.fft.fft(x, dim=1).abs(),
    "rfft": lambda x, make: torch.fft.rfft(x, dim=2).abs(),
    "rfft2": lambda x, make: torch.fft.rfft2(x, dim=(1, 2)).abs(),
    "irfft2": lambda x, make: torch.fft.irfft2(torch.complex(x, x), dim=(1, 2)),
    "conv2d": lambda x, make: F.conv2d(x, make(8, 16, 3, 3).mT),
    "conv2d of groups": lambda x, make: F.conv2d(x, make(8, 4, 3, 3).mT, groups=4),
    "conv2d of one channel": lambda x, make: F.conv2d(x[:, :1], make(8, 1, 3, 3).mT),
    "conv2d of each channel": lambda x, make: F.conv2d(x, make(32, 1, 3, 3).mT, groups=16),
    "conv3d of each channel": lambda x, make: F.conv3d(
        x.unflatten(1, (4, 4)), make(8, 1, 3, 3, 3).mT, groups=4
    ).flatten(1, 2),
    "conv_transpose2d": lambda x, make: F.conv_transpose2d(x, make(16, 8, 3, 3).mT, make(8)),
    "conv_transpose2d of groups": lambda x, make: F.conv_transpose2d(
        x, make(16, 2, 3, 3).mT, groups=4
    ),
}
OF_ROWS: dict[str, Callable[..., torch.Tensor]] = {
    "layer_norm": lambda x, make: F.layer_norm(x, (64,), make(64), make(64)),
    "rms_norm": lambda x, make: F.rms_norm(x, (64,), make(64)),
    "linear": lambda x, make: F.linear(x, make(32, 64), make(32)),
    "bmm": lambda x, make: torch.bmm(x, make(4, 64, 16)),
    "softmax": lambda x, make: F.softmax(x, -1),
    "attention": lambda x, make: _attention(x),
    "attention, causal": lambda x, make: _attention(x, is_causal=True),
    "attention, mask": lambda x, make: _attention(x, attn_mask=make(32, 32).detach()),
    "attention, mask across": lambda x, make: _attention(x, attn_mask=make(32, 32).detach().t()),
    "max_pool1d": lambda x, make: F.max_pool1d(x, 2),
    "avg_pool1d": lambda x, make: F.avg_pool1d(x, 2),
}


def cases() -> Iterator[LayoutCase]:
    """Each operator with each layout of its input and of its result's gradient."""
    for shape, calls in ((IMAGES, OF_IMAGES), (ROWS, OF_ROWS)):
        for name, call in calls.items():
            for of_input in INPUTS[len(shape)]:
                for of_gradient in GRADIENTS[len(shape)]:
                    told = f"{name}: {of_input}, {of_gradient}"
                    yield LayoutCase(told, call, shape, of_input, of_gradient)
