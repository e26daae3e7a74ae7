"""Weights of recurrent layers, which cuDNN wants in one buffer.

Sources: torch/nn/modules/rnn.py (``flatten_parameters``) and aten/src/ATen/native/cudnn/RNN.cpp
(``get_parameters``, ``copy_weights_to_flat_buf_views``), 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from memcalc.kernels.recurrent import GATES, Layers, Mode, weights
from memcalc.trace import device
from memcalc.trace.torch_private.dispatch import FakeTensor, recorder_in_use
from memcalc.trace.torch_private.tensors import storage_key

_ACCEPTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FLATTENED = (torch.float16, torch.float32, torch.float64)
"""torch/backends/cudnn/__init__.py, ``CUDNN_TENSOR_DTYPES``: others are copied at every call."""
MODES = {"rnn_relu": Mode.RELU, "rnn_tanh": Mode.TANH, "lstm": Mode.LSTM, "gru": Mode.GRU}
"""By the operator's name."""


def accepts(tensor: torch.Tensor) -> bool:
    """PyTorch's ``cudnn_is_acceptable``."""
    if tensor.device.type != device.NAME or device.NAME == "cpu" or tensor.dtype not in _ACCEPTED:
        return False
    recorder = recorder_in_use()
    if recorder is None or not recorder.runs_cudnn or tensor.numel() == 0:
        return False
    able = tensor.dtype is not torch.bfloat16
    return able or recorder.target is None or recorder.target.bf16


def described(mode: int, like: torch.Tensor, inputs: int, *sizes: Any) -> Layers:
    """``sizes``: hidden, projected, how many layers, both directions."""
    hidden, projected, layers, both = sizes
    return Layers(
        mode=int(mode),
        layers=layers,
        directions=2 if both else 1,
        inputs=inputs,
        hidden=hidden,
        projected=projected,
        element=like.element_size(),
        half=like.dtype is torch.float16,
    )


def _parts(layers: Layers, *, bias: bool) -> Iterator[tuple[int, int]]:
    """Where each parameter begins in the buffer and how many numbers it has, in their order."""
    begin, gates = 0, GATES[Mode(layers.mode)] * layers.hidden
    for layer in range(layers.layers):
        given = layers.output * layers.directions if layer else layers.inputs
        for _ in range(layers.directions):
            matrices, rest = (gates * given, gates * layers.output), (gates, gates)
            last = (layers.hidden * layers.projected,) if layers.projected else ()
            for kind, sizes in enumerate((matrices, rest, last)):
                for size in sizes:
                    if bias or kind != 1:
                        yield begin, size
                    begin += size


def one_buffer(params: Sequence[torch.Tensor], layers: Layers, bias: bool) -> Any:
    """The buffer that all parameters are views of; ``None``: they lie apart."""
    first, total = params[0], weights(layers)
    together = all(
        storage_key(param) == storage_key(first) and param.storage_offset() == begin
        for param, (begin, _) in zip(params, _parts(layers, bias=bias), strict=True)
    )
    if not together or first.untyped_storage().nbytes() < total * layers.element:
        return None
    return first.detach().as_strided((total,), (1,), 0)


def views_of(buffer: torch.Tensor, layers: Layers, bias: bool, like: Sequence[torch.Tensor]) -> Any:
    """The buffer's parts as parameters of these shapes."""
    return [
        buffer.as_strided(param.shape, param.contiguous().stride(), begin)
        for param, (begin, _) in zip(like, _parts(layers, bias=bias), strict=True)
    ]


def flatten(module: torch.nn.RNNBase) -> bool:
    """Put a module's weights into one buffer, as ``RNNBase.flatten_parameters`` does on CUDA.

    Returns:
        Whether they are on the simulated GPU, and so were seen to.
    """
    given = module._flat_weights
    if len(given) != len(module._flat_weights_names):
        return False
    if not all(isinstance(weight, FakeTensor) for weight in given):
        return False
    params: list[Any] = list(given)
    if params[0].device.type != device.NAME or device.NAME == "cpu":
        return False
    same = len({param.dtype for param in params}) == 1 and params[0].dtype in _FLATTENED
    apart = len({(storage_key(param), param.storage_offset()) for param in params}) == len(params)
    if same and apart and all(map(accepts, params)):
        mode = MODES[module.mode.lower()]
        sizes = (module.hidden_size, module.proj_size, module.num_layers, module.bidirectional)
        layers = described(mode, params[0], module.input_size, *sizes)
        with torch.no_grad():
            buffer = torch.zeros(weights(layers), dtype=params[0].dtype, device=params[0].device)
            for param, view in zip(
                params, views_of(buffer, layers, bool(module.bias), params), strict=True
            ):
                view.copy_(param)
                param.set_(view)
    return True
