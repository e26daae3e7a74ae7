"""Which depthwise convolutions PyTorch keeps from cuDNN."""

import pytest
import torch

from memcalc.trace.operators.overrides import without_cudnn

convolution = torch.ops.aten.convolution.default
backward = torch.ops.aten.convolution_backward.default


def call(channels=32, groups=32, dtype=torch.float32, layout=torch.contiguous_format, many=1):
    image = torch.empty(2, channels, 8, 8, dtype=dtype).contiguous(memory_format=layout)
    weight = torch.empty(channels * many, channels // groups, 3, 3, dtype=dtype)
    weight = weight.contiguous(memory_format=layout)
    return image, weight, [1, 1], [1, 1], [1, 1], False, [0, 0], groups


def asked(image, weight, *options):
    grad = torch.empty(image.shape[0], weight.shape[0], 8, 8, dtype=image.dtype)
    both = (
        without_cudnn(convolution, (image, weight, None, *options)),
        without_cudnn(backward, (grad, image, weight, None, *options, [True, True, False])),
    )
    assert len(set(both)) == 1
    return both[0]


def test_depthwise_in_fp32_runs_without_cudnn():
    assert asked(*call())
    assert asked(*call(many=2))


@pytest.mark.parametrize(
    "other",
    [
        {"groups": 1},
        {"groups": 4},
        {"dtype": torch.float16},
        {"layout": torch.channels_last},
    ],
    ids=str,
)
def test_cudnn_runs_all_others(other):
    assert not asked(*call(**other))


def test_a_transposed_convolution_is_cudnns():
    image, weight, *moves, _, more, groups = call()
    assert not asked(image, weight, *moves, True, more, groups)
