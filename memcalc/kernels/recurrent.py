"""What cuDNN's recurrent layers take: one workspace a call, and one reserve space for backward.

Both are what the library itself answers (``cudnnGetRNNTempSpaceSizes``, 9.1 to 9.20), asked for
described devices by benchmarks/record_recurrent.py and put into sums here: every size that was
asked, over a hundred thousand of them, is the sum's to the byte. Which algorithm runs is PyTorch's
choice: aten/src/ATen/native/cudnn/RNN.cpp (2.11 and 2.13), ``get_algo``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from memcalc.kernels.scratch import ceil_div, round_up
from memcalc.kernels.target import Target

_ALIGNMENT = 32
_HEAD = 256
"""Bytes that a space begins with."""
_PER_STREAM = 8 << 20
"""A stream of its own for each layer and direction has a workspace for its products."""
_STATE, _STATES = 24, 512
"""Bytes of a generator of random numbers, and so many generators go together."""
_LONG = 256
"""Steps whose gates are made at once in one direction."""
_STATIC = 2432


class Mode(IntEnum):
    """Of a layer, numbered as in cudnn_adv.h."""

    RELU = 0
    TANH = 1
    LSTM = 2
    GRU = 3


GATES = {Mode.RELU: 1, Mode.TANH: 1, Mode.LSTM: 4, Mode.GRU: 3}
_KEPT = {Mode.RELU: 1, Mode.TANH: 1, Mode.LSTM: 4, Mode.GRU: 6}
"""Hidden states' worth that a step keeps for backward."""
_FORWARD = {Mode.RELU: (1,), Mode.TANH: (1,), Mode.LSTM: (4, 2), Mode.GRU: (3,)}
_BACKWARD = {Mode.RELU: (1,), Mode.TANH: (1,), Mode.LSTM: (2, 1), Mode.GRU: (1,)}
_STATIONARY = {Mode.RELU: (2,), Mode.TANH: (2,), Mode.LSTM: (2, 2), Mode.GRU: (2,)}
_STATIONARY_BACK = {Mode.RELU: 1, Mode.TANH: 1, Mode.LSTM: 4, Mode.GRU: 6}
"""Buffers of a hidden state's size for each layer, and for each row: of algorithms whose weights
stay in the multiprocessors the last two."""


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of one call."""

    mode: int
    """A ``Mode``."""
    layers: int
    directions: int
    inputs: int
    hidden: int
    projected: int = 0
    """Size of the output of an LSTM with projections, else 0."""
    element: int
    """Bytes of a number."""
    half: bool = False
    """They are float16, not bfloat16."""

    @property
    def output(self) -> int:
        """Size of a direction's output."""
        return self.projected or self.hidden


class Sequences(msgspec.Struct, frozen=True, kw_only=True):
    """What the layers are given; sizes may be symbols where only ``reserve`` is asked."""

    steps: Any
    batch: Any
    rows: Any
    """Steps of all sequences together; without packing their product with the batch."""
    packed: bool = False
    dropout: bool = False
    """Something is dropped between layers: training, and a share above zero."""


class _Algorithm(IntEnum):
    STANDARD = 0
    STATIC = 1
    SMALL = 3


def weights(layers: Layers, *, bias: bool = True) -> int:
    """Numbers in the one buffer that holds all weights, biases always among them."""
    gates, count = GATES[Mode(layers.mode)], 0
    for layer in range(layers.layers):
        given = layers.output * layers.directions if layer else layers.inputs
        columns = given + layers.output + (2 if bias else 0)
        count += gates * layers.hidden * columns + layers.hidden * layers.projected
    return count * layers.directions


def reserve(layers: Layers, given: Sequences) -> Any:
    """Bytes that the forward keeps for backward."""
    mode, states = Mode(layers.mode), layers.directions * layers.element * given.rows
    between = layers.layers - 1
    spaces = [
        _KEPT[mode] * layers.layers * layers.hidden * states,
        between * layers.hidden * states,
    ]
    if mode is Mode.LSTM:
        spaces.append(layers.layers * layers.hidden * states)
    if layers.projected:
        spaces += [layers.layers * size * states for size in (layers.hidden, layers.projected)]
    if given.dropout:
        bits = given.steps * given.batch * layers.output * layers.directions
        spaces += [ceil_div(bits, 8)] * (between * layers.directions)
    return _HEAD + sum(round_up(space, _ALIGNMENT) for space in spaces)


def dropout_states(target: Target) -> int:
    """Bytes of cuDNN's generators of random numbers, one for each thread of the device."""
    threads = target.multiprocessors * target.architecture.threads
    return round_up(threads, _STATES) * _STATE


def workspace(
    layers: Layers, given: Sequences, target: Target, *, train: bool, backward: bool = False
) -> int:
    """Bytes of a call.

    Args:
        layers: what is called.
        given: its sequences.
        target: the GPU.
        train: with ``nn.Module.train``; backward is.
        backward: the call is one of backward, for which PyTorch chooses anew.
    """
    algorithm = _algorithm(layers, given, target, backward=backward)
    if not _stays(algorithm, layers, target):
        algorithm = _Algorithm.STANDARD
    forward = _forward(layers, given, algorithm)
    if train:
        forward = max(forward, _backward(layers, given, algorithm, target))
    number = layers.layers * layers.directions
    one_stream = target.capability[0] == 8 and layers.directions == 1 and layers.layers > 1
    streams = 0 if one_stream else _PER_STREAM * number
    matrices = weights(layers, bias=False) * layers.element
    return _HEAD + streams + round_up(matrices, _ALIGNMENT) + forward


def _stays(algorithm: _Algorithm, layers: Layers, target: Target) -> bool:
    """CuDNN takes more for the algorithm than for its standard one."""
    if algorithm is _Algorithm.STATIC:
        return target.capability < (10, 0)
    return layers.half or layers.element > 2


def _forward(layers: Layers, given: Sequences, algorithm: _Algorithm) -> int:
    mode, gates = Mode(layers.mode), GATES[Mode(layers.mode)]
    stays = algorithm is not _Algorithm.STANDARD
    row = given.rows * layers.hidden
    if layers.directions == 1:
        long = given.rows if stays else min(given.rows, _LONG * given.batch)
        spaces = [gates * long * layers.hidden, *([row] if given.dropout else [])]
    else:
        spaces = [4 * row, 2 * gates * row]
    spaces += [4 * gates * row] if stays else []
    buffers = (_STATIONARY if stays else _FORWARD)[mode]
    return _bytes(layers, given, [*spaces, *_states(layers, given, buffers, stays)], copies=1)


def _backward(layers: Layers, given: Sequences, algorithm: _Algorithm, target: Target) -> int:
    mode, single = Mode(layers.mode), layers.layers == 1
    stays = algorithm is not _Algorithm.STANDARD
    row, widest = given.rows * layers.hidden, given.rows * max(layers.inputs, layers.hidden)
    if layers.directions == 2:
        spaces = [4 * widest, (2 if single else 4) * row]
    elif single or stays:
        spaces = [widest, (1 if single else 2) * row]
    else:
        spaces = [widest, _in_flight(layers, given, target) * layers.hidden]
    if stays:
        least = _STATIC + given.batch if algorithm is _Algorithm.STATIC else 0
        spaces += [max(8 * given.rows, least) * layers.hidden, _STATIONARY_BACK[mode] * row]
    buffers = (_STATIONARY if stays else _BACKWARD)[mode]
    return _bytes(layers, given, [*spaces, *_states(layers, given, buffers, stays)], copies=2)


def _states(layers: Layers, given: Sequences, buffers: tuple[int, ...], stays: bool) -> list[int]:
    """Numbers of the buffers that each layer has, for a step."""
    if layers.directions == 2:
        buffers = (*buffers, 1 if stays else 2)
    hidden = given.batch * layers.hidden * layers.layers * layers.directions
    projected = [given.rows * layers.hidden * layers.directions] if layers.projected else []
    return [*(size * hidden for size in buffers), *projected]


def _bytes(layers: Layers, given: Sequences, numbers: list[int], copies: int) -> int:
    """All of it, with copies of inputs, outputs and states that are not packed."""
    if not given.packed:
        number = given.batch * layers.layers * layers.directions
        states = [layers.output * number]
        if Mode(layers.mode) is Mode.LSTM:
            states.append(layers.hidden * number)
        ends = [given.rows * layers.inputs, given.rows * layers.output * layers.directions]
        numbers = [*numbers, *ends * copies, *states * (2 * copies)]
    lengths = 0 if given.packed else round_up(8 * given.batch, _ALIGNMENT)
    return lengths + sum(round_up(number * layers.element, _ALIGNMENT) for number in numbers)


def _in_flight(layers: Layers, given: Sequences, target: Target) -> int:
    """Rows of gradients between layers: of a few steps, where several layers run at once."""
    batch = given.batch
    most = 32 if batch <= 1 else 16 if batch <= 8 else 8
    few = most if batch <= 16 else 4 if batch <= 96 else 2
    each = most if given.steps >= 128 and target.capability >= (8, 0) else few
    return int(min(given.rows, (each * layers.layers + most) * batch))


def _algorithm(layers: Layers, given: Sequences, target: Target, *, backward: bool) -> _Algorithm:
    """PyTorch's ``get_algo``."""
    if layers.projected or given.packed:
        return _Algorithm.STANDARD
    gated = layers.mode in (Mode.LSTM, Mode.GRU)
    forward, back = (192, 128) if gated else (384, 256)
    small = back if backward else forward
    if layers.element < 8 and layers.hidden <= small:
        return _Algorithm.SMALL
    if layers.half and _may_stay(layers) and _is_faster(layers, given, target):
        return _Algorithm.STATIC
    return _Algorithm.STANDARD


def _may_stay(layers: Layers) -> bool:
    """PyTorch's ``use_persist_common_heuristics``."""
    single = layers.layers == layers.directions == 1
    sizes = layers.hidden % 128 == 0 and layers.inputs % 128 == 0
    return single and sizes and layers.hidden <= 1024


def _is_faster(layers: Layers, given: Sequences, target: Target) -> bool:
    """PyTorch's ``use_persist_device_heuristics``."""
    (major, minor), batch, steps = target.capability, given.batch, given.steps
    if major == 7:
        fits = batch == 8 or (batch % 16 == 0 and batch not in (80, 112))
        limits = ((40, 128), (20, 96), (10, 32))
        long = any(steps >= least and batch <= most for least, most in limits)
        return minor != 5 and fits and long
    if major < 8 or target.multiprocessors < 98 or minor == 6 or layers.mode == Mode.GRU:
        return False
    heavy = layers.mode != Mode.LSTM and batch >= 96 and layers.hidden >= 896
    return batch % 8 == 0 and batch <= 128 and not heavy
