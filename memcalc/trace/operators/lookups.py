"""Gradients of embeddings, as CUDA makes them."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.errors import EstimateError

_aten = torch.ops.aten


def _bag_backward(
    grad: torch.Tensor, indices: torch.Tensor, offsets: Any, bags: Any, sizes: Any, largest: Any,
    rows: int, by_frequency: bool, mode: int, sparse: bool, weights: Any, padding: int = -1,
) -> torch.Tensor:  # fmt: skip
    """Source: aten/src/ATen/native/EmbeddingBag.cpp, ``_embedding_bag_backward`` (2.13)."""
    if sparse:
        _refuse()
    return _aten._embedding_bag_dense_backward.default(  # type: ignore[no-any-return]
        grad, indices, bags, sizes, largest, rows, by_frequency, mode, weights, padding
    )


def _refuse(*_: Any, **__: Any) -> Any:
    """Neither what makes sparse gradients nor what optimizers do with them is known."""
    raise EstimateError(
        "gradients that are sparse tensors are not simulated: measure the run with memcalc run, or "
        "estimate it with sparse=False, which takes more"
    )


OVERRIDES: dict[Any, tuple[Any, str]] = {
    _aten._embedding_bag_backward.default: (_bag_backward, ""),
    _aten._sparse_coo_tensor_with_dims_and_tensors.default: (_refuse, ""),
}
"""What runs instead, and what is assumed by it (empty: nothing)."""
