"""The workspace of cuDNN's attention, which PyTorch takes and gives back around each call.

Shapes: B batch, H query heads, Hk key heads, Sq query length, Sk key length, D head size, Dv that
of values.

Two parts make it. cuDNN's open frontend asks for the fp32 accumulator of dq and the row sums of
grad x output; source: include/cudnn_frontend/node/scaled_dot_product_flash_attention.h,
``CompositeSDPABackwardNode::get_fe_workspace_size_node``, frontend 1.18 (PyTorch 2.11) and 1.23
(PyTorch 2.13). The engine that the closed library chooses asks for the rest; what it asks was read
from cuDNN 9.19 and 9.20 for PyTorch's own graphs, by planning without a device
(evidence/standin/cudnn/attention-*.json), and these formulas say it for every problem recorded.
PyTorch's side: aten/src/ATen/native/cudnn/MHA.cpp.
"""

from __future__ import annotations

from memcalc.kernels.scratch import Allocations, nested, round_up
from memcalc.kernels.target import Target

_FLOAT = 4
_HALF = 2
_UNIT = 128
"""What parts are aligned to, and what an engine takes for itself; on 9.0 that is two of them."""


def forward(target: Target) -> Allocations:
    """The same for every problem: a little on 9.0, nothing elsewhere."""
    return nested(2 * _UNIT) if target.architecture.cudnn_attention == "9.0" else ()


def backward(
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value_dim: int,
    grad_copy: int,
    target: Target,
) -> Allocations:
    """Row sums and accumulators, and dk, dv of every query head where heads are grouped.

    Args:
        query: (B, H, Sq, D).
        key: (B, Hk, Sk, D).
        value_dim: Dv.
        grad_copy: bytes of the copy of a gradient whose last dimension is strided, or 0.
        target: the GPU.
    """
    batch, heads, q_len, head_dim = query
    rows = batch * heads * q_len
    frontend = _FLOAT * rows * head_dim + _FLOAT * rows
    return nested(grad_copy, frontend + _engine(query, key, value_dim, target))


def _engine(
    query: tuple[int, int, int, int],
    key: tuple[int, int, int, int],
    value_dim: int,
    target: Target,
) -> int:
    batch, heads, q_len, head_dim = query
    grouped = key[1] != heads
    spread = sum(
        round_up(_HALF * batch * heads * key[2] * width, _UNIT) for width in (head_dim, value_dim)
    )
    if target.architecture.cudnn_attention == "9.0":
        return 2 * _UNIT + (spread if grouped else 0)
    if _made_for_blackwell(q_len, key[2], target):
        return _UNIT + spread if grouped else 0
    accumulator = _FLOAT * batch * heads * round_up(q_len, 8) * head_dim
    return _UNIT + accumulator + (spread if grouped else 0)


def _made_for_blackwell(q_len: int, k_len: int, target: Target) -> bool:
    """Short sequences run the engine that GPUs before and beside Hopper and Blackwell run."""
    return target.architecture.cudnn_attention == "10.0" and q_len > 128 and k_len > 128
