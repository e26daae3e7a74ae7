"""Calls that PyTorch gives to cuDNN, in the form of ``operator_cases``: attention, convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from operator_cases import FLOAT, HALF, Case
from torch.nn import functional as F


def cases() -> Iterator[Case]:
    """Shapes of convolutions are ones that configs/convolutions has."""
    yield from _attention()
    yield from _convolutions()


def _heads(tensor: torch.Tensor) -> torch.Tensor:
    """(B, S, H, D) as attention takes it, (B, H, S, D)."""
    return tensor.transpose(1, 2)


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(_heads(q), _heads(k), _heads(v))


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(_heads(q), _heads(k), _heads(v), is_causal=True)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads = [_heads(tensor) for tensor in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(q.shape[0], 1, q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
    return F.scaled_dot_product_attention(_heads(q), _heads(k), _heads(v), mask)


def _strided(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Its gradient arrives with another dimension innermost."""
    return _plain(q, k, v).transpose(2, 3).reshape(-1).clone()


def _without_gradient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return _plain(q, k, v)


def _attention() -> Iterator[Case]:
    for length, head in ((64, 64), (128, 80), (197, 64), (512, 128)):
        shape = (2, length, 8, head)
        few = (2, length, 2, head)
        for run in (_plain, _causal, _masked, _strided, _without_gradient):
            name = f"attention{run.__name__} {length} {head}"
            yield Case(name, run, (shape, shape, shape), HALF)
        yield Case(f"attention_grouped {length} {head}", _grouped, (shape, few, few), HALF)
    cross = ((2, 100, 8, 64), (2, 300, 8, 64), (2, 300, 8, 64))
    yield Case("attention_cross", _plain, cross, HALF)


def _tokens(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Patches as tokens, whose gradient arrives transposed."""
    return F.conv2d(x, w, b, stride=w.shape[2]).flatten(2).transpose(1, 2).contiguous()


def _pixels(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The image itself needs no gradient."""
    return F.conv2d(x.detach(), w, b, stride=w.shape[2])


def _convolutions() -> Iterator[Case]:
    patches = ((4, 3, 224, 224), (768, 3, 16, 16), (768,))
    for dtype, short in ((FLOAT, "fp32"), (HALF, "bf16"), (torch.float16, "fp16")):
        yield Case(f"patches {short}", _tokens, patches, dtype)
        yield Case(f"patches of pixels {short}", _pixels, patches, dtype)
        shapes = ((2, 64, 56, 56), (64, 64, 3, 3))
        yield Case(f"3 x 3 {short}", lambda x, w: F.conv2d(x, w, padding=1), shapes, dtype)
        shapes = ((8, 64, 56, 56), (256, 64, 1, 1))
        yield Case(f"1 x 1 {short}", F.conv2d, shapes, dtype)
        shapes = ((2, 128, 56, 56), (128, 128, 3, 3))
        yield Case(
            f"strided {short}", lambda x, w: F.conv2d(x, w, stride=2, padding=1), shapes, dtype
        )
        sound = ((2, 80, 3000), (768, 80, 3), (768,))
        yield Case(f"sound {short}", lambda *i: F.conv1d(*i, padding=1), sound, dtype)
        turned = ((2, 3000, 80), (768, 80, 3), (768,))
        yield Case(
            f"turned sound {short}",
            lambda x, w, b: F.conv1d(x.transpose(1, 2), w, b, padding=1),
            turned,
            dtype,
        )
