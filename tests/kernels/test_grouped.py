"""What products of groups take, as PyTorch's CUDA code asked for it over the stand-in driver."""

import pytest

from memcalc.kernels.grouped import grouped_mm
from memcalc.kernels.target import Target


def target(capability, multiprocessors):
    return Target(capability=capability, multiprocessors=multiprocessors, torch=(2, 13))


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "groups", "size", "shared", "taken"),
    [
        ((9, 0), 132, 1, (240, 256), 0, (84, 67584)),
        ((9, 0), 132, 5, (4096, 4096), 0, (324, 67584)),
        ((9, 0), 78, 64, (64, 256), 0, (3840, 39936)),
        ((10, 0), 148, 1, (240, 256), 0, (84, 871424)),
        ((10, 0), 148, 2, (240, 256), 0, (120, 795648)),
        ((10, 0), 148, 2, (512, 256), 2, (120, 871424)),
        ((10, 0), 132, 4, (240, 256), 1, (240, 709632)),
        ((10, 3), 148, 7, (4096, 4096), 0, (444, 871424)),
        ((10, 0), 160, 64, (128, 1024), 0, (3840, 860160)),
    ],
)
def test_bytes_are_those_that_were_asked_for(
    capability, multiprocessors, groups, size, shared, taken
):
    made = grouped_mm(groups, size, shared, target(capability, multiprocessors))
    assert made == (*taken, ~1, ~0)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (12, 0)])
def test_other_gpus_multiply_group_by_group(capability):
    assert grouped_mm(4, (240, 256), 0, target(capability, 100)) == ()
