"""Operators on what is large: more rows, columns and bytes than most layers have.

Reductions are split over blocks of threads there, and over parts where offsets do not fit in 32
bits; gradients of norms' weights are summed in two steps. As ``operator_cases``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from operator_cases import FLOAT, Case, each
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_WORDS, _WIDTH = 151552, 4096
_SHAPES = ((128256, 256), (64, 197, 768), (3, 2000000), (1000003,), (_WORDS, _WIDTH))


def _reductions() -> Iterator[Case]:
    names = "sum mean prod nansum amax amin std var_mean argmax any logsumexp".split()
    for shape in _SHAPES:
        for dim in sorted({0, len(shape) - 1}):
            for name in names:
                yield Case(
                    f"{name} {shape} {dim}",
                    lambda x, name=name, dim=dim: getattr(torch, name)(x.detach(), dim),
                    (shape,),
                )
            for order in (2, 1, float("inf")):
                yield from each(
                    f"norm {order} {shape} {dim}",
                    lambda x, order=order, dim=dim: torch.linalg.vector_norm(
                        x.detach(), order, dim
                    ),
                    shape,
                )
            yield from each(
                f"normalize {shape} {dim}", lambda x, d=dim: F.normalize(x, dim=d), shape
            )
        for name in ("sum", "mean", "prod", "std", "norm", "max", "argmax", "aminmax"):
            yield from each(
                f"{name} of all {shape}",
                lambda x, name=name: getattr(torch, name)(x.detach()),
                shape,
            )
        yield from each(
            f"dist {shape}", lambda x, y: torch.dist(x.detach(), y.detach()), shape, shape
        )
        yield from each(
            f"largest of lists {shape}", lambda x: torch._foreach_max([x.detach()] * 2)[0], shape
        )
    yield Case("bincount", lambda x: torch.bincount(x), ((1 << 20,),), whole=(0,))
    yield from each(
        "norm except a dimension", lambda x: torch.norm_except_dim(x, 2, 1), (4096, 256)
    )


def _norms() -> Iterator[Case]:
    rows = ((65536, 1024), (65537, 1024), (100352, 768), (200704, 96), (66000, 33), (70000, 2112))
    for count, width in rows:
        shape = (count, width), (width,), (width,)
        name = f"{count} {width}"
        yield from each(
            f"layer_norm {name}", lambda x, w, b: F.layer_norm(x, w.shape, w, b), *shape
        )
        yield from each(f"rms_norm {name}", lambda x, w: F.rms_norm(x, w.shape, w), *shape[:2])
    yield Case(
        "layer_norm without bias",
        lambda x, w: F.layer_norm(x, w.shape, w),
        ((131072, 64), (64,)),
        FLOAT,
    )


def _losses() -> Iterator[Case]:
    wide = (8192, _WORDS)
    for smoothing in (0.0, 0.1):
        yield from each(
            f"cross_entropy {smoothing}",
            lambda x, y, s=smoothing: F.cross_entropy(x, y, label_smoothing=s),
            wide,
            wide[:1],
            whole=(1,),
        )
    yield from each("softmax", lambda x: F.softmax(x, -1), wide)
    yield from each("bias", lambda x, b: x + b, wide, wide[1:])
    yield from each(
        "embedding", lambda w, i: F.embedding(i, w), (_WORDS, _WIDTH), (8, 1024), whole=(1,)
    )
    yield from each("mse", F.mse_loss, wide, wide)


def _fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v)


def _attention() -> Iterator[Case]:
    """Batch, heads, queries, keys, width of keys and of values."""
    for b, h, q, k, d, v in (
        *((2, 128, 512, 512, 192, 128), (4, 8, 512, 512, 256, 256), (8, 32, 512, 512, 256, 256)),
        *((1, 16, 2048, 2048, 192, 128), (3, 7, 1000, 776, 160, 160), (5, 11, 336, 704, 256, 128)),
        *((2, 4, 96, 2000, 136, 200), (8, 32, 512, 512, 128, 128), (2, 8, 512, 512, 64, 192)),
        *((8, 32, 512, 512, 96, 128), (1, 4, 512, 512, 128, 64), (8, 8, 512, 512, 64, 64)),
    ):
        shapes = (b, h, q, d), (b, h, k, d), (b, h, k, v)
        for dtype, short in ((torch.float16, "fp16"), (FLOAT, "fp32")):
            yield Case(f"attention {b} {h} {q} {k} {d} {v} {short}", _fused, shapes, dtype)


def cases() -> Iterator[Case]:
    """All of them."""
    for group in (_reductions, _norms, _losses, _attention):
        yield from group()
