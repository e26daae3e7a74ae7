"""How a tensor of the simulated GPU is printed: as one of the GPU, whose numbers are read for it.

PyTorch's own code finds out how wide the numbers are, by operators that take memory on the GPU.
Source: torch/_tensor_str.py, ``_str_intern`` (2.13).
"""

from __future__ import annotations

from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.trace.own_classes import stood_for
from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.torch_private.names import ask
from memcalc.trace.torch_private.tensors import unasked

_numbers = ask("torch._tensor_str:_tensor_str")
_with_rest = ask("torch._tensor_str:_add_suffixes")
_PLAIN = (FakeTensor, torch.Tensor, torch.nn.Parameter)
_COMPLEX = {torch.float64: torch.complex128}


def install(patches: Patches) -> None:
    """Let ``repr`` and ``str`` of a tensor say what they say on a GPU."""

    def written(original: Any, tensor: Any, *, tensor_contents: str | None = None) -> str:
        if not _shows_numbers(tensor):
            return str(original(tensor, tensor_contents=tensor_contents))
        kind = stood_for(type(tensor))
        begins = "tensor(" if kind in _PLAIN else f"{kind.__name__}("
        with torch.no_grad(), unasked():
            numbers = tensor_contents or _numbers(tensor, len(begins))
        said = _with_rest(begins + numbers, _rest(tensor), len(begins), force_newline=False)
        named = isinstance(tensor, torch.nn.Parameter) and kind not in _PLAIN
        return f"Parameter({said})" if named else said

    patches.wrap(torch._tensor_str, "_str", written)


def _shows_numbers(tensor: Any) -> bool:
    """It has memory on the GPU, one number beside the other."""
    if not isinstance(tensor, FakeTensor):
        return False
    return tensor.is_cuda and tensor.layout is torch.strided and not tensor.is_quantized


def _rest(tensor: torch.Tensor) -> list[str]:
    """What is said beside the numbers."""
    rest = [f"device='{tensor.device}'"]
    default = torch.get_default_dtype()
    usual: tuple[torch.dtype, ...] = (
        default,
        _COMPLEX.get(default, torch.complex64),
        torch.int64,
        torch.bool,
    )
    if not tensor.numel():
        if tensor.dim() != 1:
            rest.append(f"size={tuple(tensor.shape)}")
        usual = (default,)
    if tensor.dtype not in usual:
        rest.append(f"dtype={tensor.dtype}")
    if tensor.grad_fn is not None:
        rest.append(f"grad_fn=<{tensor.grad_fn.name().rsplit('::', 1)[-1]}>")
    elif tensor.requires_grad:
        rest.append("requires_grad=True")
    return rest
