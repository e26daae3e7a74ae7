"""The updates written plainly, one tensor at a time: what the fast paths are tested against.

Sources: Adam, Kingma and Ba 2015, algorithm 1; decoupled decay, Loshchilov and Hutter 2019,
algorithm 2; 8-bit states, Dettmers et al. 2022; the correction term, Kahan 1965 as applied to
bf16 training by Zamirai et al. 2020 ("Revisiting BFloat16 Training").
"""

import torch

from memcalc.optim import rounding
from memcalc.optim.blockwise import BLOCK, count_blocks, nearest_code, reciprocal_scales


def adam_32bit(params, grads, state1, state2, s):
    """Update in place; moments in float32 whatever the parameter's dtype."""
    for p, g, m, v in zip(params, grads, state1, state2, strict=True):
        p.copy_(_moved(_moments(p.float(), g, m, v, s), m, v, s))


def adam_8bit(params, grads, state1, state2, absmax1, absmax2, qmap1, qmap2, s):
    """Update in place; moments dequantized, updated and quantized again."""
    for i, p in enumerate(params):
        m = dequantize(state1[i], absmax1[i], qmap1)
        v = dequantize(state2[i], absmax2[i], qmap2)
        p.copy_(_moved(_moments(p.float(), grads[i], m, v, s), m, v, s))
        codes, scales = quantize(m, qmap1)
        state1[i].copy_(codes)
        absmax1[i].copy_(scales)
        codes, scales = quantize(v, qmap2, keep_nonzero=True)
        state2[i].copy_(codes)
        absmax2[i].copy_(scales)


def adamw_bf16(params, grads, exp_avg, exp_avg_sq, shift, keys, s):
    """Update in place; sums in float32, everything stored in bf16."""
    for i, p in enumerate(params):
        m, v = exp_avg[i].float(), exp_avg_sq[i].float()
        value = p.float() + shift[i].float()
        value = _moved(_moments(value, grads[i], m, v, s), m, v, s)
        p.copy_(value)

        bits, half, scratch = (torch.empty_like(value, dtype=torch.int32) for _ in range(3))
        weyl = rounding.weyl_indices(p.numel(), p.device)
        rounding.random_bits(weyl, 0, keys[i], out=bits, scratch=scratch)
        exp_avg[i].copy_(rounding.round_stochastic_(m, rounding.low_half(bits, out=half)))
        exp_avg_sq[i].copy_(rounding.round_stochastic_(v, rounding.high_half(bits, out=half)))
        rounding.remix_(bits, scratch)
        shift[i].copy_(
            rounding.round_stochastic_(value - p.float(), rounding.high_half(bits, out=half))
        )


def by_block(values):
    """Pad a flat tensor with zeros to whole blocks: (n,) to (ceil(n / 256), 256)."""
    padding = count_blocks(values.numel()) * BLOCK - values.numel()
    return torch.nn.functional.pad(values, (0, padding)).view(-1, BLOCK)


def quantize(values, qmap, *, keep_nonzero=False):
    """Quantize a flat float32 tensor block by block, to codes and scales."""
    blocks = by_block(values)
    absmax = blocks.abs().amax(dim=1)
    scaled = blocks * reciprocal_scales(absmax)[:, None]
    codes = nearest_code(scaled, qmap, keep_nonzero=keep_nonzero)
    return codes.view(-1)[: values.numel()], absmax


def dequantize(codes, absmax, qmap):
    """Undo ``quantize`` up to its rounding."""
    return (by_block(qmap[codes.long()]) * absmax[:, None]).view(-1)[: codes.numel()]


def _moments(value, grad, m, v, s):
    """Move the moments in place by the gradient; return the parameter after weight decay."""
    g = grad.float()
    if s.maximize:
        g = -g
    if s.l2:
        g = g.add(value, alpha=s.l2)
    m.mul_(s.beta1).add_(g, alpha=1.0 - s.beta1)
    v.mul_(s.beta2).addcmul_(g, g, value=1.0 - s.beta2)
    return value * s.shrink


def _moved(value, m, v, s):
    """Return the parameter after the step along m / (sqrt(v) / root_correction + eps)."""
    return value.addcdiv(m, v.sqrt().div_(s.root_correction).add_(s.eps), value=s.step_size)
