"""The updates written plainly, one tensor at a time: what the fast paths are tested against.

Sources: Adam, Kingma and Ba 2015, algorithm 1; decoupled decay, Loshchilov and Hutter 2019,
algorithm 2; 8-bit states, Dettmers et al. 2022; the correction term, Kahan 1965 as applied to
bf16 training by Zamirai et al. 2020 ("Revisiting BFloat16 Training").
"""

import torch
from torch import Tensor

from memcalc.optim import rounding
from memcalc.optim.batch import Batch8bit, Batch32bit, BatchBF16, Scalars
from memcalc.optim.blockwise import dequantize, quantize


def adam_32bit(batch: Batch32bit, s: Scalars) -> None:
    """Update the batch in place; moments in float32 whatever the parameter's dtype."""
    for p, g, m, v in zip(batch.params, batch.grads, batch.state1, batch.state2, strict=True):
        value = _moments(p.float(), g, m, v, s)
        p.copy_(_moved(value, m, v, s))


def adam_8bit(batch: Batch8bit, s: Scalars) -> None:
    """Update the batch in place; moments dequantized, updated and quantized again."""
    for i, p in enumerate(batch.params):
        m = dequantize(batch.state1[i], batch.absmax1[i], batch.qmap1)
        v = dequantize(batch.state2[i], batch.absmax2[i], batch.qmap2)
        value = _moments(p.float(), batch.grads[i], m, v, s)
        p.copy_(_moved(value, m, v, s))
        codes, scales = quantize(m, batch.qmap1)
        batch.state1[i].copy_(codes)
        batch.absmax1[i].copy_(scales)
        codes, scales = quantize(v, batch.qmap2, keep_nonzero=True)
        batch.state2[i].copy_(codes)
        batch.absmax2[i].copy_(scales)


def adamw_bf16(batch: BatchBF16, s: Scalars) -> None:
    """Update the batch in place; sums in float32, everything stored in bf16."""
    for i, p in enumerate(batch.params):
        m, v = batch.exp_avg[i].float(), batch.exp_avg_sq[i].float()
        value = p.float() + batch.shift[i].float()
        value = _moved(_moments(value, batch.grads[i], m, v, s), m, v, s)
        p.copy_(value)

        bits, half, scratch = (torch.empty_like(value, dtype=torch.int32) for _ in range(3))
        weyl = rounding.weyl_indices(p.numel(), p.device)
        rounding.random_bits(weyl, 0, batch.keys[i], out=bits, scratch=scratch)
        batch.exp_avg[i].copy_(rounding.round_stochastic_(m, rounding.low_half(bits, out=half)))
        batch.exp_avg_sq[i].copy_(rounding.round_stochastic_(v, rounding.high_half(bits, out=half)))
        rounding.remix_(bits, scratch)
        rest = value - p.float()
        batch.shift[i].copy_(rounding.round_stochastic_(rest, rounding.high_half(bits, out=half)))


def _moments(value: Tensor, grad: Tensor, m: Tensor, v: Tensor, s: Scalars) -> Tensor:
    """Move the moments in place by the gradient; return the parameter after weight decay."""
    g = grad.float()
    if s.maximize:
        g = -g
    if s.l2:
        g = g.add(value, alpha=s.l2)
    m.mul_(s.beta1).add_(g, alpha=1.0 - s.beta1)
    v.mul_(s.beta2).addcmul_(g, g, value=1.0 - s.beta2)
    return value * s.shrink


def _moved(value: Tensor, m: Tensor, v: Tensor, s: Scalars) -> Tensor:
    """Return the parameter after the step along m / (sqrt(v) / root_correction + eps)."""
    return value.addcdiv(m, v.sqrt().div_(s.root_correction).add_(s.eps), value=s.step_size)
