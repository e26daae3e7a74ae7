"""``pickle`` of tensors without memory: what they are is written, and made again of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.script import place
from memcalc.script.patches import Patches
from memcalc.trace.subclasses import on_host
from memcalc.trace.torch_private.dispatch import FakeTensor, FakeTensorMode

_SAID = "what is pickled holds no numbers of weights and of the GPU"
_LATER = "This was pickled by a simulated run, and holds no numbers."


class _Run:
    """The one that goes on."""

    mode: FakeTensorMode | None = None
    say: Callable[[str], None] = print


class _Held:
    """A tensor, which ``copy`` hands on as it is and ``pickle`` describes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        one = self.tensor
        _Run.say(place.named(_SAID))
        return _described, (tuple(one.shape), one.stride(), one.dtype, one.device.type)


def install(patches: Patches, mode: FakeTensorMode, say: Callable[[str], None]) -> None:
    """Let such tensors be pickled from now on.

    Args:
        patches: what is changed.
        mode: of the tensors.
        say: told that numbers are missing.
    """
    patches.set(_Run, "mode", mode)
    patches.set(_Run, "say", staticmethod(say))
    patches.set(FakeTensor, "__reduce_ex__", _reduced)

    def parameter(original: Any, one: torch.Tensor, protocol: int) -> Any:
        reduce = _reduced if isinstance(one, FakeTensor) else original
        return reduce(one, protocol)

    # Parameters without memory are both, and theirs is asked first.
    patches.wrap(torch.nn.Parameter, "__reduce_ex__", parameter)


def _reduced(tensor: torch.Tensor, protocol: int) -> Any:
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _again, (_Held(tensor.detach()), is_parameter, tensor.requires_grad)


def _described(shape: Any, strides: Any, dtype: torch.dtype, device: str) -> _Held:
    if _Run.mode is None:
        raise RuntimeError(_LATER)
    if device != "cpu":
        return _Held(torch.empty_strided(shape, strides, dtype=dtype, device=device))
    like = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return _Held(on_host(like, _Run.mode))


def _again(held: _Held, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    tensor = held.tensor.detach()
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
