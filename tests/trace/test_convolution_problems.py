"""What of a convolution's call decides on its workspace, in one to three axes."""

import pytest
import torch

from memcalc.trace.operators import convolution

conv = torch.ops.aten.convolution.default


def called(x, w, *, stride=1, padding=0, transposed=False, layout=torch.contiguous_format):
    axes = x.dim() - 2
    x, w = (one.to("meta").contiguous(memory_format=layout) for one in (x, w))
    options = ([stride] * axes, [padding] * axes, [1], transposed, [0] * axes, 1)
    out = conv(x, w, None, *options).contiguous(memory_format=layout)
    return convolution.forward_call((x, w, None, *options), out).args


def test_a_volume_is_asked_in_three_axes():
    x, w = torch.empty(2, 4, 8, 10, 12), torch.empty(6, 4, 3, 3, 3)
    moves = (2, 2, 2, 1, 1, 1, 1, 1, 1)
    assert called(x, w, stride=2, padding=1) == (0, x.shape, w.shape, moves, 1, 0)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((4, 8, 8), torch.channels_last), ((4, 8, 8, 8), torch.channels_last_3d)],
)
def test_channels_may_lie_last(shape, layout):
    x, w = torch.empty(2, *shape), torch.empty(6, 4, *[3] * (len(shape) - 1))
    plain, last = called(x, w), called(x, w, layout=layout)
    assert last == (*plain, True)


def test_a_transposed_one_is_the_gradient_of_anothers_input():
    x, w = torch.empty(2, 8, 4, 4, 4), torch.empty(8, 3, 2, 2, 2)
    moves = (2, 2, 2, 0, 0, 0, 1, 1, 1)
    assert called(x, w, stride=2, transposed=True) == (1, (2, 3, 8, 8, 8), w.shape, moves, 1, 0)


def test_a_line_is_a_picture_of_one_row():
    x, w = torch.empty(2, 4, 9), torch.empty(6, 4, 3)
    moves = (1, 2, 0, 1, 1, 1)
    assert called(x, w, stride=2, padding=1) == (0, (2, 4, 1, 9), (6, 4, 1, 3), moves, 1, 0)


def test_what_cudnn_has_no_table_for_has_no_sizes():
    x, w = (torch.empty(*shape, dtype=torch.float64) for shape in ((2, 4, 9, 9), (6, 4, 3, 3)))
    assert called(x, w) == (0,)
