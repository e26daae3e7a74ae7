"""Cells of LSTM and GRU as PyTorch's own CUDA kernels run them; they have no fake kernels.

Source: aten/src/ATen/native/cuda/RNN.cu (2.11 and 2.13). Layers of ``nn.LSTM`` and ``nn.GRU`` come
here where cuDNN does not run them.
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.trace.operators import decompositions

_GRU_WORKSPACE, _GRU_GATES = 5, 3
_aten = torch.ops.aten


def _lstm_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Shapes: gates (batch, 4 hidden); state (batch, hidden)."""
    workspace = torch.empty(input_gates.shape, dtype=input_gates.dtype, device=input_gates.device)
    hy, cy = (torch.empty(cx.shape, dtype=cx.dtype, device=cx.device) for _ in range(2))
    return hy, cy, workspace


def _lstm_cell_backward(
    grad_hy: Any, grad_cy: Any, cx: torch.Tensor, cy: Any, workspace: torch.Tensor, has_bias: bool
) -> Any:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    gates = torch.empty_like(workspace)
    grad_cx = torch.empty_like(cx)
    return gates, grad_cx, gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes: gates (batch, 3 hidden); state (batch, hidden)."""
    size = (hx.shape[0], hx.shape[1] * _GRU_WORKSPACE)
    workspace = torch.empty(size, dtype=hx.dtype, device=hx.device)
    return torch.empty(hx.shape, dtype=hx.dtype, device=hx.device), workspace


def _gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Any:
    size = (workspace.shape[0], workspace.shape[1] // _GRU_WORKSPACE * _GRU_GATES)
    gates, hidden = (
        torch.empty(size, dtype=workspace.dtype, device=workspace.device) for _ in range(2)
    )
    grad_hx = torch.empty(grad_hy.shape, dtype=grad_hy.dtype, device=grad_hy.device)
    bias = (gates.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return gates, hidden, grad_hx, *bias


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten._pack_padded_sequence.default: (decompositions.pack_padded_sequence, ""),
    _aten._thnn_fused_lstm_cell.default: (_lstm_cell, ""),
    _aten._thnn_fused_lstm_cell_backward_impl.default: (_lstm_cell_backward, ""),
    _aten._thnn_fused_gru_cell.default: (_gru_cell, ""),
    _aten._thnn_fused_gru_cell_backward.default: (_gru_cell_backward, ""),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
