"""What PyTorch's own Python, and what it binds, did otherwise in earlier releases.

Put in its place where such a release runs, and taken away where none does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from memcalc.trace import device
from memcalc.trace.operators import release
from memcalc.trace.torch_private.choices import PROJECTIONS, REST

_SLICES_SKIPPED_SINCE = (2, 9)
_HEADS_FREED_SINCE = (2, 12)
_ALL = slice(None)
_getitem: Callable[[torch.Tensor, Any], Any] = torch.Tensor.__getitem__
_originals = {name: getattr(F, name) for name in ("multi_head_attention_forward", *PROJECTIONS)}
_held = threading.local()


def use() -> None:
    """Do as the release that runs does."""
    if not release.is_since(*_SLICES_SKIPPED_SINCE):
        torch.Tensor.__getitem__ = _sliced  # type: ignore[method-assign, assignment]
    elif vars(torch.Tensor).get("__getitem__") is _sliced:
        # It has its own from the class that it is of.
        del torch.Tensor.__getitem__
    earlier = {} if release.is_since(*_HEADS_FREED_SINCE) else _HOLDING
    for name, original in _originals.items():
        setattr(F, name, earlier.get(name, original))


def _sliced(tensor: torch.Tensor, index: Any) -> Any:
    """``x[:, 0]`` takes a slice of all first, whose gradient is another tensor.

    Source: aten/src/ATen/TensorIndexing.h, ``applySlice``: a slice was left out only where it ends
    exactly where the tensor does, which ``:`` says not (recorded with 2.1.2, 2.8.0 and 2.9.1).
    """
    parts = index if isinstance(index, tuple) else (index,)
    taken = tensor.device.type == device.NAME and tensor.requires_grad and torch.is_grad_enabled()
    if not taken or not any(isinstance(part, slice) for part in parts):
        return _getitem(tensor, index)
    if not all(part is None or part is ... or _is_known(part) for part in parts):
        return _getitem(tensor, index)
    return _step_by_step(tensor, parts)


def _is_known(part: Any) -> bool:
    """It stands for one dimension."""
    if isinstance(part, torch.Tensor):
        return part.dtype not in (torch.bool, torch.uint8)
    return isinstance(part, int | slice) and not isinstance(part, bool)


def _step_by_step(tensor: torch.Tensor, parts: tuple[Any, ...]) -> torch.Tensor:
    left: list[Any] = []
    for place, part in enumerate(parts):
        dim = len(left)
        if part is ...:
            others = sum(later is not None for later in parts[place + 1 :])
            left += [_ALL] * (tensor.dim() - dim - others)
        elif part is None:
            tensor = tensor.unsqueeze(dim)
            left.append(_ALL)
        elif isinstance(part, int):
            tensor = tensor.select(dim, part)
        elif isinstance(part, slice):
            tensor = _one_slice(tensor, dim, part)
            left.append(_ALL)
        else:
            left.append(part)
    tensors = any(part is not _ALL for part in left)
    return _getitem(tensor, tuple(left)) if tensors else tensor


def _one_slice(tensor: torch.Tensor, dim: int, part: slice) -> torch.Tensor:
    ends_behind = part.stop is None or (
        isinstance(part.stop, int) and part.stop > tensor.shape[dim]
    )
    if ends_behind and not part.start and part.step in (None, 1):
        return torch.ops.aten.slice.Tensor(tensor, dim, 0, REST)  # type: ignore[no-any-return]
    return _getitem(tensor, (_ALL,) * dim + (part,))  # type: ignore[no-any-return]


def _attended(*args: Any, **kwargs: Any) -> Any:
    """``nn.MultiheadAttention`` holds queries, keys and values until it returns.

    Source: torch/nn/functional.py, ``multi_head_attention_forward``, which lets them go before the
    last product since 2.12 (read in 2.11 and 2.12; recorded with 2.10.0 and before).
    """
    outer = getattr(_held, "projected", None)
    _held.projected = []
    try:
        return _originals["multi_head_attention_forward"](*args, **kwargs)
    finally:
        _held.projected = outer


def _projecting(name: str) -> Callable[..., Any]:
    def project(*args: Any, **kwargs: Any) -> Any:
        out = _originals[name](*args, **kwargs)
        if (held := getattr(_held, "projected", None)) is not None:
            held.extend(out)
        return out

    return project


_HOLDING: dict[str, Callable[..., Any]] = {
    "multi_head_attention_forward": _attended,
    **{name: _projecting(name) for name in PROJECTIONS},
}
