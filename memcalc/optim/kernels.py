"""Updates as Triton kernels: a single pass over memory, no scratch.

Importing this needs Triton; only CUDA tensors get here (and, with TRITON_INTERPRET=1, tests).

A launch updates many tensors.  Its table, int64, holds first the number of each tensor's first
program, then a row per tensor: its element count, the addresses of its parts and, for bf16, its
random key.  A program finds its tensor by bisection.  The arithmetic is ``reference``'s to
float32 rounding; the random bits, and the codes of equal moments, are the same.

Constants in capitals: COUNT tensors; DEPTH of the bisection, 2**DEPTH >= COUNT; SPAN elements or
BLOCKS blocks of 256 per program; EVEN when every element count and address is a multiple of 16,
which lets loads be wide.
"""
# ruff: noqa: N803, SIM108, SIM300  a kernel's constants are arguments, its branches statements
# mypy: ignore-errors

import triton
import triton.language as tl

_LOG2_10 = tl.constexpr(3.3219280948873623)
_SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)
_WEYL = tl.constexpr(0x9E3779B9)
_MIX1 = tl.constexpr(0x21F0AAAD)
_MIX2 = tl.constexpr(0x735A2D97)
_MIX3 = tl.constexpr(0x85EBCA6B)


@triton.jit
def _locate(table, COUNT, DEPTH: tl.constexpr):
    """Return the tensor that this program works on, and the program's number within it."""
    program = tl.program_id(0)
    low = 0
    high = COUNT
    for _ in tl.static_range(DEPTH):
        middle = (low + high) // 2
        after = tl.load(table + middle) > program
        high = tl.where(after, middle, high)
        low = tl.where(after, low, middle)
    return low, program - tl.load(table + low)


@triton.jit
def _load_count(row, EVEN: tl.constexpr):
    n = tl.load(row)
    if EVEN:
        n = tl.multiple_of(n, 16)
    return n


@triton.jit
def _ptr(row, COLUMN: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr):
    """Return the typed pointer in a column of a table's row."""
    pointer = tl.load(row + COLUMN).to(tl.pointer_type(KIND))
    if EVEN:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _round_to_nearest(value, KIND: tl.constexpr):
    """Convert float32 to the nearest value of a dtype, ties to even."""
    if KIND == tl.bfloat16:
        # By hand, as Triton's interpreter truncates.
        bits = value.to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        value = tl.where(value == value, nearest.to(tl.float32, bitcast=True), value)
    return value.to(KIND)


@triton.jit
def _step_adam(value, g, m, v, sign, l2, beta1, rest1, beta2, rest2, shrink, correction, eps, size):
    g = g * sign + l2 * value
    m = m * beta1 + rest1 * g
    v = v * beta2 + rest2 * g * g
    value = value * shrink + size * (m / (tl.sqrt(v) / correction + eps))
    return value, m, v


@triton.jit
def _nearest_code(x, qmap, SIGNED: tl.constexpr):
    """Return the nearest 8-bit code: guessed by formula, then compared with two neighbors."""
    a = tl.minimum(tl.abs(x), 1.0)
    decade = tl.floor(tl.log2(tl.maximum(a, 1e-7)) / _LOG2_10) + 7.0
    decade = tl.minimum(tl.maximum(decade, 0.0), 6.0)
    cells = tl.exp2(decade) if SIGNED else tl.exp2(decade + 1.0)
    within = (a * tl.exp2((6.0 - decade) * _LOG2_10) - 0.1) / 0.9
    rank = (cells + tl.floor(within * cells)).to(tl.int32)
    if SIGNED:
        guess = tl.where(x < 0, 127 - rank, 127 + rank)
    else:
        guess = rank - 1
    guess = tl.minimum(tl.maximum(guess, 1), 254)
    below = tl.abs(x - tl.load(qmap + guess - 1))
    at = tl.abs(x - tl.load(qmap + guess))
    above = tl.abs(x - tl.load(qmap + guess + 1))
    code = tl.where(at < below, guess, guess - 1)
    code = tl.where(above < tl.minimum(at, below), guess + 1, code)
    if not SIGNED:
        code = tl.where((x > 0) & (code == 0), 1, code)  # a second moment stays above zero
    return code


@triton.jit
def _quantize(values, qmap, SIGNED: tl.constexpr):
    absmax = tl.max(tl.abs(values), axis=1)
    # tl.max drops NaNs; adding 0 * the sum brings one back.
    absmax = absmax + 0.0 * tl.sum(tl.where(values == values, 0.0, values), axis=1)
    # Rounded as on the CPU: an approximate reciprocal would move values across boundaries.
    inverse = tl.math.div_rn(tl.full(absmax.shape, 1.0, tl.float32), absmax)
    inverse = tl.where(absmax < _SMALLEST_NORMAL, 0.0, inverse)
    return _nearest_code(values * inverse[:, None], qmap, SIGNED), absmax


@triton.jit
def adam_8bit(
    table, qmap1, qmap2,
    sign, l2, beta1, rest1, beta2, rest2, shrink, correction, eps, size,
    COUNT, DEPTH: tl.constexpr, BLOCKS: tl.constexpr, EVEN: tl.constexpr,
    PARAM: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    """Apply one Adam step; rows: n, param, grad, state1, state2, absmax1, absmax2."""
    tensor, program = _locate(table, COUNT, DEPTH)
    row = table + COUNT + tensor * 7
    n = _load_count(row, EVEN)
    block = program.to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    offset = block[:, None] * 256 + tl.arange(0, 256)[None, :]
    inside, scaled = offset < n, block * 256 < n
    p = _ptr(row, 1, PARAM, EVEN) + offset
    codes1, codes2 = _ptr(row, 3, tl.uint8, EVEN) + offset, _ptr(row, 4, tl.uint8, EVEN) + offset
    scales1, scales2 = _ptr(row, 5, tl.float32, 0) + block, _ptr(row, 6, tl.float32, 0) + block

    value = tl.load(p, mask=inside, other=0).to(tl.float32)
    g = tl.load(_ptr(row, 2, GRAD, EVEN) + offset, mask=inside, other=0).to(tl.float32)
    m = tl.load(qmap1 + tl.load(codes1, mask=inside, other=0).to(tl.int32))
    m = tl.where(inside, m * tl.load(scales1, mask=scaled, other=0)[:, None], 0.0)
    v = tl.load(qmap2 + tl.load(codes2, mask=inside, other=0).to(tl.int32))
    v = tl.where(inside, v * tl.load(scales2, mask=scaled, other=0)[:, None], 0.0)
    value, m, v = _step_adam(
        value, g, m, v, sign, l2, beta1, rest1, beta2, rest2, shrink, correction, eps, size
    )
    tl.store(p, _round_to_nearest(value, PARAM), mask=inside)
    code, absmax = _quantize(m, qmap1, True)
    tl.store(codes1, code.to(tl.uint8), mask=inside)
    tl.store(scales1, absmax, mask=scaled)
    code, absmax = _quantize(v, qmap2, False)
    tl.store(codes2, code.to(tl.uint8), mask=inside)
    tl.store(scales2, absmax, mask=scaled)


@triton.jit
def adam_32bit(
    table,
    sign, l2, beta1, rest1, beta2, rest2, shrink, correction, eps, size,
    COUNT, DEPTH: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr,
    PARAM: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    """Apply one Adam step with float32 moments; table rows: n, param, grad, state1, state2."""
    tensor, program = _locate(table, COUNT, DEPTH)
    row = table + COUNT + tensor * 5
    offset = program.to(tl.int64) * SPAN + tl.arange(0, SPAN)
    inside = offset < _load_count(row, EVEN)
    p = _ptr(row, 1, PARAM, EVEN) + offset
    state1 = _ptr(row, 3, tl.float32, EVEN) + offset
    state2 = _ptr(row, 4, tl.float32, EVEN) + offset
    value = tl.load(p, mask=inside, other=0).to(tl.float32)
    g = tl.load(_ptr(row, 2, GRAD, EVEN) + offset, mask=inside, other=0).to(tl.float32)
    m = tl.load(state1, mask=inside, other=0)
    v = tl.load(state2, mask=inside, other=0)
    value, m, v = _step_adam(
        value, g, m, v, sign, l2, beta1, rest1, beta2, rest2, shrink, correction, eps, size
    )
    tl.store(p, _round_to_nearest(value, PARAM), mask=inside)
    tl.store(state1, m, mask=inside)
    tl.store(state2, v, mask=inside)


@triton.jit
def _random_bits(index, key):
    """Return ``rounding.random_bits`` for element indices, as uint32."""
    x = index * _WEYL + key
    x = (x ^ (x >> 16)) * _MIX1
    x = (x ^ (x >> 15)) * _MIX2
    return x ^ (x >> 15)


@triton.jit
def _round_stochastic(value, noise):
    bits = (value.to(tl.uint32, bitcast=True) + noise) & 0xFFFF0000
    # A NaN of all ones, as GPUs make them, would overflow into a zero.
    rounded = tl.where(value == value, bits.to(tl.float32, bitcast=True), value)
    return rounded.to(tl.bfloat16)


@triton.jit
def adamw_bf16(
    table,
    sign, l2, beta1, rest1, beta2, rest2, shrink, correction, eps, size,
    COUNT, DEPTH: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    """Apply one bf16 AdamW step; rows: n, param, grad, exp_avg, exp_avg_sq, shift, key."""
    tensor, program = _locate(table, COUNT, DEPTH)
    row = table + COUNT + tensor * 7
    offset = program.to(tl.int64) * SPAN + tl.arange(0, SPAN)
    inside = offset < _load_count(row, EVEN)
    p = _ptr(row, 1, tl.bfloat16, EVEN) + offset
    exp_avg = _ptr(row, 3, tl.bfloat16, EVEN) + offset
    exp_avg_sq = _ptr(row, 4, tl.bfloat16, EVEN) + offset
    shift = _ptr(row, 5, tl.bfloat16, EVEN) + offset
    value = tl.load(p, mask=inside, other=0).to(tl.float32)
    value += tl.load(shift, mask=inside, other=0).to(tl.float32)
    g = tl.load(_ptr(row, 2, GRAD, EVEN) + offset, mask=inside, other=0).to(tl.float32)
    m = tl.load(exp_avg, mask=inside, other=0).to(tl.float32)
    v = tl.load(exp_avg_sq, mask=inside, other=0).to(tl.float32)
    value, m, v = _step_adam(
        value, g, m, v, sign, l2, beta1, rest1, beta2, rest2, shrink, correction, eps, size
    )
    stored = _round_to_nearest(value, tl.bfloat16)
    bits = _random_bits(offset.to(tl.uint32), tl.load(row + 6).to(tl.uint32))
    tl.store(p, stored, mask=inside)
    tl.store(exp_avg, _round_stochastic(m, bits & 0xFFFF), mask=inside)
    tl.store(exp_avg_sq, _round_stochastic(v, bits >> 16), mask=inside)
    bits = bits * _MIX3
    bits ^= bits >> 13
    rest = value - stored.to(tl.float32)
    tl.store(shift, _round_stochastic(rest, bits >> 16), mask=inside)
