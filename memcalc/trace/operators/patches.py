"""Functions of PyTorch that ask whether a tensor is fake, or what it holds, replaced.

They act before any dispatch mode sees an operator, so the functions themselves are replaced; on
other tensors they do what they did.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from memcalc.trace import device
from memcalc.trace.operators import first_steps, recurrent_weights, release
from memcalc.trace.operators.autocast import HALVES
from memcalc.trace.subclasses import apply_by_data
from memcalc.trace.torch_private.choices import default_place, script_with, wrap_module_apply
from memcalc.trace.torch_private.dispatch import FakeTensor, below_autograd, transformed
from memcalc.trace.torch_private.names import replaced

_COMPILED = (
    *((torch, name) for name in ("tensor", "group_norm", "ctc_loss", "is_autocast_enabled")),
    *((torch, name) for name in ("get_autocast_dtype", "get_autocast_gpu_dtype")),
    *((torch.nn.functional, name) for name in ("linear", "one_hot")),
)
"""Functions that TorchScript knows, and not what stands for them."""


@functools.cache
def install_once() -> None:
    """Replace them all, for the life of the process."""
    compiled = {(owner, name): getattr(owner, name) for owner, name in _COMPILED}
    wrap_module_apply(_cast_by_data)
    _format_as_values()
    _make_on_host_first()
    read_ctc_lengths()
    _scatter_one_hot()
    add_bias_in_place()
    _normalize_rows()
    _autocast_as_on_cuda()
    _flatten_recurrent()
    first_steps.install()
    script_with(lambda: _as_they_were(compiled))


@contextlib.contextmanager
def _as_they_were(originals: dict[tuple[Any, str], Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for (owner, name), original in originals.items():
            stack.enter_context(replaced(owner, name, original))
        yield


adds_bias = threading.local()
"""``inside`` is true while ``torch.nn.functional.linear`` runs with a bias."""


def add_bias_in_place() -> None:
    """A linear layer adds its bias in place where it is not part of the product.

    Of fake tensors, and in any dispatch mode, it makes a sum: whoever sees it must know whose.
    Source: aten/src/ATen/native/Linear.cpp, ``linear`` (2.11 and 2.13).
    """
    torch.nn.functional.linear = _Linear(torch.nn.functional.linear)


class _Linear:
    """Stands for a function, and is equal to it.

    Packages keep what they do with their own tensors in tables by function, and may have made
    these before the function was replaced.
    """

    def __init__(self, original: Callable[..., torch.Tensor]) -> None:
        self._original = original
        functools.update_wrapper(self, original)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __call__(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        given = (input, weight) if bias is None else (input, weight, bias)
        if has_torch_function(given):
            return handle_torch_function(self, given, *given)
        if bias is None:
            return self._original(input, weight)
        if transformed() is not None or forward_ad._current_level >= 0:
            # Inside ``torch.func`` it is a sum, and of forward derivatives there are others.
            return self._original(input, weight, bias)
        adds_bias.inside = True
        try:
            return self._original(input, weight, bias)
        finally:
            adds_bias.inside = False


def _normalize_rows() -> None:
    """``group_norm`` copies an input that does not lie in rows, and normalizes the copy.

    Of devices like the simulated one it takes any layout; on CUDA channels may lie last from 2.15
    on, and kernels copy what lies across as long as they run. Source:
    aten/src/ATen/native/group_norm.cpp, ``group_norm`` (2.13; 2.15 recorded).
    """
    original: Callable[..., torch.Tensor] = torch.group_norm

    def normalized(
        tensor: torch.Tensor, groups: int, weight: Any = None, bias: Any = None,
        eps: float = 1e-5, cudnn_enabled: bool = True,
    ) -> torch.Tensor:  # fmt: skip
        out: torch.Tensor = _Normalized.apply(tensor, groups, weight, bias, eps)  # type: ignore[no-untyped-call]
        return out

    def group_norm(tensor: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        if tensor.device.type != device.NAME or device.NAME == "cpu":
            return original(tensor, *rest, **more)
        # Autocast comes first, and holds what it casts to the end: what is copied is fp32.
        halved = tensor.dtype in HALVES and torch.is_autocast_enabled(device.NAME)
        cast = tensor.float() if halved else tensor
        if cast.is_contiguous() or not release.is_since(2, 15):
            return original(cast.contiguous(), *rest, **more)
        return normalized(cast, *rest, **more)

    torch.group_norm = group_norm  # type: ignore[assignment]


class _Normalized(torch.autograd.Function):
    """``group_norm`` without a copy; formulas of before 2.15 would make one of each gradient."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, groups: int, weight: Any, bias: Any, eps: float
    ) -> torch.Tensor:
        samples, channels, *area = tensor.shape
        ctx.sizes = samples, channels, math.prod(area), groups
        with below_autograd():
            out, *moments = torch.ops.aten.native_group_norm(tensor, weight, bias, *ctx.sizes, eps)
        ctx.save_for_backward(tensor, *moments, weight)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        tensor, mean, spread, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[place] for place in (0, 2, 3)]
        found = torch.ops.aten.native_group_norm_backward(
            grads[0], tensor, mean, spread, weight, *ctx.sizes, wanted
        )
        return found[0], None, *found[1:], None


def _flatten_recurrent() -> None:
    """For cuDNN: it wants a recurrent layer's weights in one buffer."""
    original: Callable[[torch.nn.RNNBase], None] = torch.nn.RNNBase.flatten_parameters

    def flatten_parameters(self: torch.nn.RNNBase) -> None:
        if not recurrent_weights.flatten(self):
            original(self)

    torch.nn.RNNBase.flatten_parameters = flatten_parameters  # type: ignore[method-assign]


def _cast_by_data(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """``module.to(dtype)`` inside a forward gives each parameter its new content.

    PyTorch would swap fake ones with those that are made, which tensors in use do not allow, also
    where nothing changes.
    """

    def apply(module: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        tensors = [
            *module.parameters(recurse=recurse),
            *module.buffers(recurse=recurse),
        ]
        there = all(isinstance(t, FakeTensor) and t.device.type == device.NAME for t in tensors)
        if not there:
            return original(module, fn, recurse)
        return apply_by_data(module, fn, recurse)

    return apply


def _autocast_as_on_cuda() -> None:
    """Whoever asks for CUDA's autocast, as is meant where no device is named, is told of ours."""
    enabled: Callable[..., bool] = torch.is_autocast_enabled
    dtype: Callable[..., torch.dtype] = torch.get_autocast_dtype

    def place(device_type: str) -> str:
        return device.NAME if device_type == "cuda" else device_type

    torch.is_autocast_enabled = lambda device_type="cuda": enabled(place(device_type))
    torch.get_autocast_dtype = lambda device_type: dtype(place(device_type))
    torch.get_autocast_gpu_dtype = lambda: dtype(device.NAME)


def _make_on_host_first() -> None:
    """``torch.tensor(data, device=gpu)`` makes a host tensor and copies it, with the GIL released.

    In a backward thread that ends the process where the device is simulated, so the same two
    steps are taken apart. Single numbers of the device among the data are read first: its C++ reads
    them where nobody is asked.
    """
    original: Callable[..., torch.Tensor] = torch.tensor

    def read(data: Any) -> Any:
        if isinstance(data, list | tuple) and any(
            isinstance(item, torch.Tensor | list | tuple) for item in data
        ):
            return [read(item) for item in data]
        return data.item() if isinstance(data, FakeTensor) and data.dim() == 0 else data

    def tensor(data: Any, **options: Any) -> torch.Tensor:
        data = read(data) if isinstance(data, list | tuple) else data
        place = default_place() if (named := options.get("device")) is None else named
        if place is None or torch.device(place).type != device.NAME or device.NAME == "cpu":
            # What tells functions where to make tensors does not know this one.
            return original(data, **{**options, "device": place})
        needs_grad = options.pop("requires_grad", False)
        made = original(data, **{**options, "device": "cpu"}).to(place)
        return made.requires_grad_(needs_grad)

    torch.tensor = tensor  # type: ignore[assignment]


def _format_as_values() -> None:
    """A single number prints as its value, also where that is only assumed."""
    original: Callable[[Any, str], str] = FakeTensor.__format__

    def formatted(tensor: FakeTensor, spec: str) -> str:
        if tensor.dim() == 0 and tensor.device.type != "meta":
            return format(tensor.item(), spec)
        return original(tensor, spec)

    FakeTensor.__format__ = formatted  # type: ignore[method-assign, assignment]


def read_ctc_lengths() -> None:
    """Lengths on the device are read before the loss, as ``ctc_loss`` does with real tensors.

    It leaves fake ones where they are, and reads real ones where no dispatch mode sees it.
    """
    original: Callable[..., torch.Tensor] = torch.ctc_loss

    def ctc_loss(
        log_probs: torch.Tensor, targets: torch.Tensor, inputs: Any, lengths: Any, *rest: Any
    ) -> torch.Tensor:
        if log_probs.device.type in (device.NAME, "cuda"):
            inputs, lengths = (
                found.tolist() if isinstance(found, torch.Tensor) else found
                for found in (inputs, lengths)
            )
        return original(log_probs, targets, inputs, lengths, *rest)

    torch.ctc_loss = ctc_loss  # type: ignore[assignment]


def _scatter_one_hot() -> None:
    """``one_hot`` writes ones into zeros; of tensor subclasses it compares with every class.

    Source: aten/src/ATen/native/Onehot.cpp (2.13). Composed before any mode sees it, so the
    function itself is replaced.
    """
    original: Callable[..., torch.Tensor] = torch.nn.functional.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if tensor.device.type != device.NAME or not num_classes or not tensor.numel():
            return original(tensor, num_classes)
        if tensor.dtype is not torch.long:
            raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
        if num_classes < -1:
            raise RuntimeError("num_classes should be positive")
        if num_classes < 0:
            num_classes = int(tensor.max()) + 1
        zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.long, device=tensor.device)
        return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)

    torch.nn.functional.one_hot = one_hot
