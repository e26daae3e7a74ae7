"""Which depthwise convolutions PyTorch keeps from cuDNN."""

import pytest
import torch

from memcalc.trace.operators.overrides import without_cudnn

convolution = torch.ops.aten.convolution.default
backward = torch.ops.aten.convolution_backward.default


def call(channels=32, groups=32, dtype=torch.float32, layout=torch.contiguous_format, many=1, **at):
    size, kernel, step = at.get("size", (8, 8)), at.get("kernel", (3, 3)), at.get("step", 1)
    image = torch.empty(at.get("batch", 2), channels, *size, dtype=dtype)
    weight = torch.empty(channels * many, channels // groups, *kernel, dtype=dtype)
    if layout is not torch.contiguous_format:
        image, weight = (one.contiguous(memory_format=layout) for one in (image, weight))
    moves = [[number] * len(size) for number in (step, 1, at.get("dilation", 1))]
    return image, weight, *moves, False, [0] * len(size), groups


def asked(image, weight, *options):
    grad = torch.empty(image.shape[0], weight.shape[0], *image.shape[2:], dtype=image.dtype)
    both = (
        without_cudnn(convolution, (image, weight, None, *options)),
        without_cudnn(backward, (grad, image, weight, None, *options, [True, True, False])),
    )
    assert len(set(both)) == 1
    return both[0]


HALF = {"dtype": torch.float16}
LINE = {"size": (120,), "kernel": (4,)}


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"many": 2},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64, "layout": torch.channels_last},
        LINE,
        {**LINE, "dtype": torch.bfloat16},
        {**LINE, **HALF, "step": 2},
        {**HALF, "kernel": (7, 7)},
        {**HALF, "kernel": (3, 5)},
        {**HALF, "size": (6, 6)},
        {**HALF, "dilation": 2},
        {**HALF, "step": 2},
        {**HALF, "channels": 16, "groups": 16},
        {**HALF, "size": (8, 8, 8), "kernel": (3, 3, 3)},
    ],
    ids=str,
)
def test_depthwise_runs_without_cudnn(kind):
    assert asked(*call(**kind))


@pytest.mark.parametrize(
    "other",
    [
        {"groups": 1},
        {"groups": 4},
        HALF,
        {**HALF, **LINE},
        {**HALF, "step": 2, "batch": 1},
        {**HALF, "step": 2, "channels": 512, "groups": 512},
        {"layout": torch.channels_last},
        {"dtype": torch.bfloat16, "layout": torch.channels_last},
    ],
    ids=str,
)
def test_cudnn_runs_all_others(other):
    assert not asked(*call(**other))


def test_a_transposed_convolution_is_cudnns():
    image, weight, *moves, _, more, groups = call()
    assert not asked(image, weight, *moves, True, more, groups)
