"""What libraries take that nobody can tell is named, not passed over."""

import pytest

from memcalc.kernels.formulas import KernelCall, uncounted
from memcalc.kernels.target import Target

TARGET = Target(capability=(9, 0), multiprocessors=132, torch=(2, 13))
OLDER = Target(capability=(8, 0), multiprocessors=108, torch=(2, 13))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (KernelCall("untold", ("cuFFT",)), "cuFFT"),
        (KernelCall("untold", ("cuSOLVER",)), "linear algebra"),
        (KernelCall("algebra", ((4096, ~0),)), "linear algebra"),
        (KernelCall("sort", (6400, 6400, 2, True)), "sorting long rows"),
    ],
)
def test_a_workspace_that_is_not_known_is_named(call, said):
    (sentence,) = uncounted([call, call], OLDER)
    assert said in sentence


def test_a_sort_that_is_known_is_not():
    calls = [KernelCall("sort", (6400, 6400, 4, True)), KernelCall("sort", (64, 8, 2, True))]
    assert uncounted(calls, OLDER) == ()
    assert uncounted([KernelCall("sort", (6400, 6400, 2, True))], TARGET) == ()


def test_readers_name_the_libraries_of_transforms_and_of_algebra():
    import torch

    from memcalc.trace.scratch.readers import READERS

    cut = torch.zeros(2, 8, 5)[:, ::2]
    (sentence,) = uncounted([READERS["_fft_r2c"]((cut, [2]), torch.fft.rfft(cut))], TARGET)
    assert "cuFFT" in sentence
    along = READERS["_fft_c2c"]((cut + 0j, [1]), torch.fft.fft(cut, dim=1))
    assert along.args == ((2 * 4 * 5 * 8, ~0),)
    assert READERS["linalg_eig"]((), None) == KernelCall("untold", ("cuSOLVER",))
