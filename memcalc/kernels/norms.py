"""What cuDNN's batch norm takes beside its outputs: nothing, unless channels lie last.

Then it runs over tiles of rows and blocks of channels, and holds sums of each. Nothing is kept for
backward. The sizes are what the library answers (``cudnnGetBatchNormalization*Size``, 9.10 to
9.20, alike for every device from capability 7.0 on), asked by benchmarks/record_recurrent.py: the
sums here are equal to all of them. PyTorch's side: aten/src/ATen/native/cudnn/BatchNorm.cpp.
"""

from __future__ import annotations

from memcalc.kernels.scratch import ceil_div

_SUMS = 8
"""Bytes of a channel's two."""
_COUNTER = 4
_FORWARD, _BACKWARD = 1072, 1056
_ROWS = {"half": 160, "single": 64, "backward": 96}


def forward(rows: int, channels: int, *, half: bool) -> int:
    """Bytes of the workspace, in training with channels last.

    Args:
        rows: elements of a channel.
        channels: of the input.
        half: the input is fp16, else fp32.
    """
    width, tile = _tile(channels, _ROWS["half" if half else "single"])
    blocks = ceil_div(channels, width)
    tiles = blocks * ceil_div(rows, tile)
    return _FORWARD + blocks * _COUNTER + tiles * (_SUMS * width + _COUNTER)


def backward(rows: int, channels: int) -> int:
    """The same of backward."""
    width, tile = _tile(channels, _ROWS["backward"])
    blocks = ceil_div(channels, width)
    return _BACKWARD + blocks * (_COUNTER + ceil_div(rows, tile) * _SUMS * width)


def _tile(channels: int, rows: int) -> tuple[int, int]:
    """Channels and rows of a tile."""
    if channels < 4:
        return 4, 4 * rows
    return (16, rows) if channels % 4 else (64, rows)
