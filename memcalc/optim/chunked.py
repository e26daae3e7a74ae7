"""Updates in vectorized torch code over chunks that stay in cache: the fast path on the CPU.

Scratch memory is for one chunk and is reused, so a step's extra memory does not grow with the
model.  Small tensors share one chunk, and with it the cost of each torch call.  The arithmetic
equals the reference's, operation for operation.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from memcalc.optim.blockwise import BLOCK, CodeTables, code_tables, reciprocal_scales
from memcalc.optim.rounding import (
    high_half,
    low_half,
    random_bits,
    remix_,
    round_stochastic_,
    weyl_indices,
)
from memcalc.optim.scalars import Scalars

# Elements per chunk.  On two cores with 2 MiB of cache each, 131072 was fastest of 16384 ..
# 524288: smaller chunks pay per call, larger ones leave the cache.
CHUNK = 131072
_Tensors = list[Tensor]


class Scratch:
    """Reusable working memory for one chunk: 24 bytes per element, at most CHUNK elements."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.size = 0

    def grow(self, part: slice) -> None:
        """Allocate the working memory again if it is too small for a chunk."""
        if part.stop - part.start <= self.size:
            return
        self.size = part.stop - part.start

        def empty(dtype: torch.dtype) -> Tensor:
            return torch.empty(self.size, dtype=dtype, device=self.device)

        self.m, self.v, self.root, self.value, self.grad = (empty(torch.float32) for _ in range(5))
        self.index = empty(torch.int32)


def adam_32bit(
    params: _Tensors, grads: _Tensors, state1: _Tensors, state2: _Tensors, s: Scalars
) -> None:
    """Apply one Adam step in place, chunk by chunk, with float32 moments."""
    work = Scratch(params[0].device)

    def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
        for part in _split_chunks(p.numel()):
            work.grow(part)
            value = _as_float32(p[part], work.value)
            _step_adam(value, _as_float32(g[part], work.grad), m[part], v[part], work.root, s)
            _copy_back(value, p[part])

    _update_in_runs((params, grads, state1, state2), update, multiple=1)


def adam_8bit(
    params: _Tensors, grads: _Tensors, state1: _Tensors, state2: _Tensors,
    absmax1: _Tensors, absmax2: _Tensors, qmap1: Tensor, qmap2: Tensor, s: Scalars,
) -> None:  # fmt: skip
    """Apply one Adam step in place, chunk by chunk, with 8-bit moments."""
    work = Scratch(params[0].device)
    tables1 = code_tables(qmap1.device, signed=True)
    tables2 = code_tables(qmap2.device, signed=False)

    def update(p: Tensor, g: Tensor, *state: Tensor) -> None:
        for part in _split_at_blocks(p.numel()):
            work.grow(part)
            blocks = slice(part.start // BLOCK, -(-part.stop // BLOCK))
            codes1, codes2 = (one[part] for one in state[:2])
            scales1, scales2 = (one[blocks] for one in state[2:])
            m = _dequantize(codes1, scales1, qmap1, work.m, work.index)
            v = _dequantize(codes2, scales2, qmap2, work.v, work.index)
            value = _as_float32(p[part], work.value)
            _step_adam(value, _as_float32(g[part], work.grad), m, v, work.root, s)
            _copy_back(value, p[part])
            _quantize_(m, codes1, scales1, tables1, work)
            _quantize_(v, codes2, scales2, tables2, work)

    columns = params, grads, state1, state2, absmax1, absmax2
    _update_in_runs(columns, update, multiple=BLOCK)


def adamw_bf16(
    params: _Tensors, grads: _Tensors, exp_avg: _Tensors, exp_avg_sq: _Tensors,
    shift: _Tensors, keys: list[int], s: Scalars,
) -> None:  # fmt: skip
    """Apply one AdamW step in place to bf16 parameters, moments and correction term."""
    device = params[0].device
    work = Scratch(device)
    work.grow(slice(0, min(CHUNK, max(p.numel() for p in params))))
    weyl = weyl_indices(work.size, device)
    bits = torch.empty_like(weyl)
    for i, p in enumerate(params):
        for part in _split_chunks(p.numel()):
            n = part.stop - part.start
            m = _as_float32(exp_avg[i][part], work.m)
            v = _as_float32(exp_avg_sq[i][part], work.v)
            value = torch.add(p[part], shift[i][part].float(), out=work.value[:n])
            _step_adam(value, _as_float32(grads[i][part], work.grad), m, v, work.root, s)
            p[part].copy_(value)

            half, noise = work.index[:n], bits[:n]
            random_bits(weyl[:n], part.start, keys[i], out=noise, scratch=half)
            exp_avg[i][part].copy_(round_stochastic_(m, low_half(noise, out=half)))
            exp_avg_sq[i][part].copy_(round_stochastic_(v, high_half(noise, out=half)))
            remix_(noise, half)
            rest = value.sub_(p[part])
            shift[i][part].copy_(round_stochastic_(rest, high_half(noise, out=half)))


def _split_chunks(n: int) -> Iterator[slice]:
    for start in range(0, n, CHUNK):
        yield slice(start, min(start + CHUNK, n))


def _split_at_blocks(n: int) -> Iterator[slice]:
    """Yield chunks of n elements that end at block boundaries; a short last block is alone."""
    tail = n % BLOCK
    yield from _split_chunks(n - tail)
    if tail:
        yield slice(n - tail, n)


def _as_float32(values: Tensor, scratch: Tensor) -> Tensor:
    """Return the values themselves if they are float32, else a float32 copy in the scratch."""
    return values if values.dtype == torch.float32 else scratch[: values.numel()].copy_(values)


def _copy_back(value: Tensor, target: Tensor) -> None:
    """Copy a value to the parameter if it was converted to float32, else do nothing."""
    if value.dtype != target.dtype:
        target.copy_(value)


def _step_adam(value: Tensor, g: Tensor, m: Tensor, v: Tensor, root: Tensor, s: Scalars) -> None:
    """Apply one Adam step to value and its moments m and v, in place."""
    if s.maximize:
        g = g.neg()
    if s.l2:
        g = g.add(value, alpha=s.l2)
    m.mul_(s.beta1).add_(g, alpha=1.0 - s.beta1)
    v.mul_(s.beta2).addcmul_(g, g, value=1.0 - s.beta2)
    if s.shrink != 1.0:
        value.mul_(s.shrink)
    denominator = torch.sqrt(v, out=root[: v.numel()]).div_(s.root_correction).add_(s.eps)
    value.addcdiv_(m, denominator, value=s.step_size)


def _view_blocks(values: Tensor, scales: Tensor) -> Tensor:
    return values.view(scales.numel(), -1)


def _dequantize(codes: Tensor, scales: Tensor, qmap: Tensor, out: Tensor, index: Tensor) -> Tensor:
    out, index = out[: codes.numel()], index[: codes.numel()]
    torch.index_select(qmap, 0, index.copy_(codes), out=out)
    _view_blocks(out, scales).mul_(scales[:, None])
    return out


def _quantize_(
    values: Tensor, codes: Tensor, scales: Tensor, tables: CodeTables, work: Scratch
) -> None:
    """Quantize values into 8-bit codes and block scales; overwrite the values."""
    n = values.numel()
    index, root = work.index[:n], work.root[:n]
    torch.amax(
        torch.abs(_view_blocks(values, scales), out=_view_blocks(root, scales)), 1, out=scales
    )
    _view_blocks(values, scales).mul_(reciprocal_scales(scales)[:, None])
    torch.bitwise_right_shift(values.view(torch.int32), 16, out=index).bitwise_and_(0xFFFF)
    code = work.grad[:n].view(torch.int32)  # the gradient is no longer needed
    torch.index_select(tables.low, 0, index, out=code)
    torch.index_select(tables.upper, 0, code, out=root)
    torch.ge(values, root, out=index)
    codes.copy_(index.add_(code))


def _update_in_runs(
    columns: Sequence[_Tensors], update: Callable[..., None], *, multiple: int
) -> None:
    """Call ``update`` for each large tensor alone and for small ones packed together.

    Args:
        columns: Parameters, gradients and states of the same tensors.
        update: Updates one tensor in place, of which it is given each column's part.
        multiple: Only tensors whose element count it divides are packed, so that blocks of that
            many elements stay whole.
    """
    for run in _group_indices([p.numel() for p in columns[0]], multiple):
        parts = [[column[i] for i in run] for column in columns]
        packed = [torch.cat(part) if len(run) > 1 else part[0] for part in parts]
        update(*packed)
        for number, (part, whole) in enumerate(zip(parts, packed, strict=True)):
            if len(run) > 1 and number != 1:  # gradients stay as they are
                torch._foreach_copy_(part, torch.split(whole, [t.numel() for t in part]))


def _group_indices(sizes: list[int], multiple: int) -> Iterator[list[int]]:
    """Yield the indices of tensors to update together: a large one alone, small ones packed."""
    run: list[int] = []
    filled = 0
    for index, size in enumerate(sizes):
        if size % multiple or size > CHUNK // 2:
            yield [index]
            continue
        if filled + size > CHUNK:
            yield run
            run, filled = [], 0
        run.append(index)
        filled += size
    if run:
        yield run
