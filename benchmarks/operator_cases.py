"""Operators that models train with, each as a small program; what it does is the same everywhere.

A case makes its inputs, then runs forward and backward. ``record_operators.py`` writes down what
PyTorch's CUDA allocator sees of it, ``tests/kernels/test_operators.py`` what memcalc makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Make = Callable[..., torch.Tensor]
HALF, FLOAT, LONG = torch.bfloat16, torch.float32, torch.long


@dataclass(frozen=True, slots=True)
class Case:
    """Shapes and dtypes of the inputs, and what is done with them."""

    name: str
    run: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = FLOAT
    whole: tuple[int, ...] = ()
    """Which inputs are whole numbers, without a gradient."""

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Zeros, so that nothing depends on chance."""
        return [
            torch.zeros(shape, dtype=LONG, device=device)
            if number in self.whole
            else torch.zeros(shape, dtype=self.dtype, device=device, requires_grad=True)
            for number, shape in enumerate(self.shapes)
        ]


def play(case: Case, inputs: list[torch.Tensor]) -> None:
    """Run forward, then backward; what forward made is dropped afterwards."""
    out = case.run(*inputs)
    out = out[0] if isinstance(out, tuple) else out
    if out.requires_grad:
        grad = torch.empty_like(out)
        out.backward(grad)
        del grad
    del out


def each(name: str, run: Callable[..., Any], *shapes: Any, **options: Any) -> Iterator[Case]:
    """The same in fp32 and in bf16."""
    for dtype, short in ((FLOAT, "fp32"), (HALF, "bf16")):
        yield Case(f"{name} {short}", run, shapes, dtype, **options)


def _activations() -> Iterator[Case]:
    for name in ("relu", "gelu", "silu", "mish", "softplus", "elu", "hardswish", "leaky_relu"):
        yield from each(name, getattr(F, name), (8, 1000))
    for name in ("tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "abs", "square"):
        yield from each(name, getattr(torch, name), (8, 1000))
    yield from each("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (8, 1000))
    yield from each("glu", F.glu, (8, 1000))
    yield from each("swiglu", lambda x, y: F.silu(x) * y, (8, 1000), (8, 1000))
    yield from each("pow", lambda x: x**3, (8, 1000))
    yield from each("clamp", lambda x: x.clamp(-1, 1), (8, 1000))
    yield from each("dropout", lambda x: F.dropout(x, 0.1), (8, 1000))
    yield from each("prelu", F.prelu, (4, 64, 100), (64,))


def _cross(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Queries and keys of different length; the mask keeps flash attention away."""
    mask = torch.zeros(q.shape[0], 1, q.shape[2], k.shape[2], dtype=q.dtype, device=q.device)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, mask)


def _padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A mask of truth values, whose rows are padded to eight numbers."""
    mask = torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, mask)


def _shared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Heads that share keys, by whatever runs that."""
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] > 1)


def _shared_attention() -> Iterator[Case]:
    for heads, width in ((2, 64), (1, 64), (2, 32)):
        shape = (2, 8, 96, 64), (2, heads, 96, 64), (2, heads, 96, width)
        yield from each(f"shared attention {heads} {width}", _shared, *shape)


def _cross_attention() -> Iterator[Case]:
    yield from each("padded attention", _padded, *[(2, 4, 211, 64)] * 3)
    for queries, keys in ((128, 1504), (640, 72)):
        for head in (64, 128, 160, 192):
            shape = (2, 4, queries, head), (2, 4, keys, head), (2, 4, keys, head)
            yield from each(f"cross attention {queries} {keys} {head}", _cross, *shape)


def _norms() -> Iterator[Case]:
    yield from each(
        "layer_norm transposed",
        lambda x, w, b: F.layer_norm(x.transpose(1, 2), w.shape, w, b),
        *((4, 96, 128), (96,), (96,)),
    )
    for width in (64, 768, 1023, 5120):
        yield from each(
            f"layer_norm {width}",
            lambda x, w, b: F.layer_norm(x, w.shape, w, b),
            (4, 128, width),
            (width,),
            (width,),
        )
        yield from each(
            f"rms_norm {width}", lambda x, w: F.rms_norm(x, w.shape, w), (4, 128, width), (width,)
        )
    yield from each("layer_norm plain", lambda x: F.layer_norm(x, (768,)), (4, 128, 768))
    for shape, groups in (((3, 64, 32, 32), 16), ((2, 512, 1000), 512), ((3, 64, 1, 1), 16)):
        channels = shape[1]
        yield from each(
            f"group_norm {shape} {groups}",
            lambda x, w, b, groups=groups: F.group_norm(x, groups, w, b),
            shape,
            (channels,),
            (channels,),
        )
    yield from each("group_norm plain", lambda x: F.group_norm(x, 4), (3, 64, 16, 16))
    yield from each("normalize", lambda x: F.normalize(x, dim=-1), (8, 1000))


def _losses() -> Iterator[Case]:
    for rows, classes in ((64, 2), (512, 1000), (512, 30522)):
        yield from each(
            f"cross_entropy {rows} {classes}", F.cross_entropy, (rows, classes), (rows,), whole=(1,)
        )
    yield from each(
        "cross_entropy sum",
        lambda x, y: F.cross_entropy(x, y, reduction="sum"),
        (64, 10),
        (64,),
        whole=(1,),
    )
    yield from each(
        "cross_entropy smooth",
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        (64, 10),
        (64,),
        whole=(1,),
    )
    yield from each(
        "cross_entropy pixels", F.cross_entropy, (2, 20, 32, 32), (2, 32, 32), whole=(1,)
    )
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        yield from each(name, getattr(F, name), (64, 10), (64, 10))
    yield from each("bce_with_logits", F.binary_cross_entropy_with_logits, (64, 10), (64, 10))
    yield from each(
        "kl_div", lambda x, y: F.kl_div(x, y, reduction="batchmean"), (64, 10), (64, 10)
    )
    yield from each(
        "cosine_similarity", lambda x, y: F.cosine_similarity(x, y), (64, 384), (64, 384)
    )
    for steps, length, clears in ((40, 7, False), (40, 7, True), (499, 7, False), (499, 7, True)):
        yield Case(
            f"ctc_loss {steps} {length} {clears}",
            lambda x, y, steps=steps, length=length, clears=clears: F.ctc_loss(
                x.log_softmax(-1), y, [steps] * 3, [length] * 3, zero_infinity=clears
            ),
            ((steps, 3, 32), (3 * length,)),
            whole=(1,),
        )


def _reductions() -> Iterator[Case]:
    for name in ("sum", "mean", "amax", "std", "var", "logsumexp"):
        for shape in ((64, 1000), (7, 65536)):
            for dim in (0, 1):
                yield from each(
                    f"{name} {shape} {dim}",
                    lambda x, name=name, dim=dim: getattr(torch, name)(x, dim=dim),
                    shape,
                )
    for name in ("sum", "mean", "std", "norm"):
        yield from each(f"{name} all", getattr(torch, name), (64, 10000))
    for name in (
        "max",
        "min",
        "median",
        "cumsum",
        "softmax",
        "log_softmax",
        "cummax",
        "sort",
        "argmax",
        "argsort",
    ):
        yield from each(
            f"{name} last", lambda x, name=name: getattr(torch, name)(x, dim=-1), (64, 1000)
        )
        yield from each(
            f"{name} first", lambda x, name=name: getattr(torch, name)(x, dim=0), (64, 1000)
        )
    yield from each("topk", lambda x: x.topk(8, dim=-1), (64, 1000))
    yield from each("topk of few", lambda x: x.topk(2, dim=-1), (512, 8))
    yield Case("cumsum whole", lambda x: x.cumsum(-1), ((4, 512),), whole=(0,))
    yield Case("cumsum flat", lambda x: x.cumsum(-1), ((100000,),))
    yield Case("cumsum of a mask", lambda x: (x > 0).cumsum(-1), ((64, 1000),))
    yield Case("cumsum of a flat mask", lambda x: (x > 0).cumsum(-1), ((100000,),))
    yield Case("sort flat", lambda x: x.sort(), ((100000,),))
    yield Case("sort whole", lambda x: x.sort(-1), ((4, 512),), whole=(0,))
    yield Case("argsort flat whole", lambda x: x.argsort(), ((4096,),), whole=(0,))
    yield Case("any", lambda x: (x > 0).any(-1), ((64, 1000),))
    yield Case("all", lambda x: (x > 0).all(), ((64, 1000),))


def _indexing() -> Iterator[Case]:
    for rows, width, count in ((100, 64, 32), (30522, 768, 512), (1000, 8, 4096)):
        yield from each(
            f"embedding {rows} {width} {count}",
            lambda w, i: F.embedding(i, w),
            (rows, width),
            (4, count),
            whole=(1,),
        )
    yield from each(
        "embedding padded",
        lambda w, i: F.embedding(i, w, padding_idx=0),
        (100, 64),
        (4, 32),
        whole=(1,),
    )
    yield from each("gather", lambda x, i: x.gather(1, i), (64, 100), (64, 7), whole=(1,))
    yield from each("index_select", lambda x, i: x.index_select(0, i), (64, 100), (7,), whole=(1,))
    yield from each("index rows", lambda x, i: x[i], (64, 100), (7,), whole=(1,))
    yield from each("index pairs", lambda x, i, j: x[i, j], (64, 100, 8), (7,), (7,), whole=(1, 2))
    yield from each(
        "index_add", lambda x, y, i: x.index_add(0, i, y), (64, 100), (7, 100), (7,), whole=(2,)
    )
    yield from each(
        "scatter_add",
        lambda x, y, i: x.scatter_add(1, i, y),
        (64, 100),
        (64, 7),
        (64, 7),
        whole=(2,),
    )
    yield from each(
        "index_put", lambda x, y, i: x.index_put((i,), y), (64, 100), (7, 100), (7,), whole=(2,)
    )
    yield from each("masked_fill", lambda x: x.masked_fill(x > 1, 0.0), (64, 100))
    yield from each("where", lambda x, y: torch.where(x > 0, x, y), (64, 100), (64, 100))
    yield from each("tril", torch.tril, (4, 64, 64))
    yield from each(
        "take_along_dim", lambda x, i: x.take_along_dim(i, 1), (64, 100), (64, 7), whole=(1,)
    )
    yield Case("one_hot", lambda i: F.one_hot(i, 10), ((4, 64),), whole=(0,))


def _shapes() -> Iterator[Case]:
    yield from each("cat", lambda x, y: torch.cat((x, y), -1), (8, 64), (8, 32))
    yield from each("stack", lambda x, y: torch.stack((x, y)), (8, 64), (8, 64))
    yield from each("repeat", lambda x: x.repeat(2, 3), (8, 64))
    yield from each("repeat_interleave", lambda x: x.repeat_interleave(4, dim=1), (2, 8, 16))
    yield from each("roll", lambda x: x.roll((1, 2), (0, 1)), (8, 64))
    yield from each("flip", lambda x: x.flip(-1), (8, 64))
    yield from each("transpose copy", lambda x: x.transpose(1, 2).contiguous(), (4, 64, 32))
    yield from each("pad", lambda x: F.pad(x, (1, 2, 3, 4)), (2, 3, 16, 16))
    yield from each("pad reflect", lambda x: F.pad(x, (1, 2), mode="reflect"), (2, 3, 16))
    yield from each("unfold", lambda x: F.unfold(x, 3), (2, 3, 16, 16))
    yield from each("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (2, 12, 8, 8))
    yield from each(
        "einsum", lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), (2, 4, 16, 8), (2, 4, 16, 8)
    )
    yield from each("outer", lambda x, y: x[:, None] * y[None], (64,), (32,))
    yield from each("broadcast", lambda x, y: x + y, (8, 64, 32), (64, 1))
    for mode in ("nearest", "bilinear", "bicubic"):
        yield from each(
            f"interpolate {mode}",
            lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode),
            (2, 3, 16, 16),
        )
    yield from each("avg_pool2d", lambda x: F.avg_pool2d(x, 2), (2, 3, 16, 16))
    yield from each("max_pool2d", lambda x: F.max_pool2d(x, 2), (2, 3, 16, 16))
    yield from each("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 8, 16, 16))
    yield from each("adaptive_avg_pool2d 3", lambda x: F.adaptive_avg_pool2d(x, 3), (2, 8, 16, 16))


def _distances() -> Iterator[Case]:
    for left, right in ((128, 128), (20, 30), (40, 20)):
        yield from each(f"cdist {left} {right}", torch.cdist, (left, 64), (right, 64))
    yield Case("cdist of several", torch.cdist, ((3, 40, 64), (3, 30, 64)))
    yield Case("cdist p 1", lambda x, y: torch.cdist(x, y, p=1), ((20, 64), (30, 64)))
    yield Case("pdist", F.pdist, ((128, 128),))
    yield Case("median of all", torch.median, ((64, 100),))
    yield from each("take", torch.take, (64, 100), (7,), whole=(1,))
    yield from each("unfold windows", lambda x: x.unfold(1, 5, 2), (8, 100))
    yield from each(
        "scatter_reduce amax",
        lambda x, y, i: x.scatter_reduce(1, i, y, "amax"),
        (64, 100),
        (64, 7),
        (64, 7),
        whole=(2,),
    )


def cases() -> Iterator[Case]:
    """All of them."""
    plain = (
        _activations,
        _cross_attention,
        _shared_attention,
        _norms,
        _losses,
        _reductions,
        _indexing,
        _shapes,
    )
    for group in (*plain, _distances):
        yield from group()
