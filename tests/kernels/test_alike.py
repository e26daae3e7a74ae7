"""Workspaces that nobody recorded lie within the limits of those most like them."""

import itertools
import json
import random

import pytest
from msgspec.structs import replace

from memcalc.kernels import alike, convolution, cudnn
from memcalc.kernels.formulas import KernelCall, bounds, scratch, uncounted
from memcalc.kernels.target import Target

A100 = Target(capability=(8, 0), multiprocessors=108, torch=(2, 13))
ODD = ((33, 50, 60, 60), (70, 50, 3, 3), (1, 1, 1, 1, 1, 1), 1, 0)

VOLUME = ((3, 10, 30, 40, 50), (22, 10, 3, 3, 3), (1, 1, 1, 1, 1, 1, 1, 1, 1), 1, 0)


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    monkeypatch.setattr(cudnn, "workspaces", lambda *_, **__: ())
    alike.limits.cache_clear()
    yield
    alike.limits.cache_clear()


LAYOUTS = [(2, False), (2, True), (3, False)]
"""Axes of an image or a volume, and whether channels lie last."""


@pytest.mark.parametrize(
    ("layout", "each"),
    [
        *zip(LAYOUTS, (2, 2, 3), strict=True),
        *(pytest.param(one, 20, marks=pytest.mark.nightly) for one in LAYOUTS),
    ],
)
def test_of_recorded_convolutions_95_in_a_hundred_lie_within_the_limits_of_the_others(layout, each):
    axes, last = layout
    draw, inside, count = random.Random(0), 0, 0
    for capability in convolution.capabilities():
        problems = convolution.recorded(capability, A100.torch)
        target = replace(A100, capability=capability)
        plain = [
            text
            for text in sorted(problems)
            if len(problem := json.loads(text)) == 5 + last and len(problem[0]) == 1 + axes
        ]
        # Of 12.0 few were recorded with channels last.
        for text in draw.sample(plain, min(each, len(plain))):
            image, *rest = json.loads(text)
            batch, taken = draw.choice(sorted(problems[text].items()))
            for direction in (0, 1, 2):
                within = alike._near(direction, ((int(batch), *image), *rest), target)
                inside += within.least <= taken[direction] <= within.most
                count += 1
    assert count > 15 * each - 3
    assert inside / count >= 0.94


def test_depthwise_convolutions_with_channels_last_may_take_four_times_their_operands():
    """As the first stage of a ConvNeXt of pictures of 64 does for its weights' gradient."""
    problem = ((512, 96, 16, 16), (96, 1, 7, 7), (1, 1, 3, 3, 1, 1), 96, 1)
    operands = 2 * 512 * 96 * 16 * 16 * 2
    plain, last = (
        alike.limits(convolution.Direction.WEIGHT_GRAD, one, replace(A100, torch=(2, 8)))
        for one in (problem, (*problem, True))
    )
    assert last.most > 4 * operands
    # What cuDNN 9.10 plans, asked for this one.
    assert last.least <= 206_296_543 <= last.most
    assert plain.most != last.most


def test_an_odd_convolution_is_counted_as_likely_and_known_within_limits():
    calls = [KernelCall("convolution", (way, *ODD)) for way in (0, 1, 2)]
    assert uncounted(calls, A100) == ()
    for bound, call in zip(bounds(calls, A100), calls, strict=True):
        assert 0 <= bound.least <= bound.bytes <= bound.most
        assert scratch(call, A100).after == (bound.bytes, ~0)


def test_what_is_recorded_is_exact_and_has_no_limits():
    text = next(iter(convolution.recorded(A100.capability, A100.torch)))
    image, *rest = json.loads(text)
    call = KernelCall("convolution", (0, (8, *image), *rest))
    assert bounds([call], A100) == ()


def test_an_older_cudnn_may_take_nothing_and_likely_takes_what_is_recorded():
    image, *rest = ((64, 56, 56), (64, 64, 3, 3), (1, 1, 1, 1, 1, 1), 1, 0)
    problem = ((32, *image), *rest)
    known = convolution.workspace(0, problem, replace(A100, torch=(2, 8)))
    old = replace(A100, torch=(2, 0))
    assert convolution.workspace(0, problem, old) is None
    within = alike.limits(0, problem, old)
    assert (within.least, within.likely) == (0, known)
    assert within.most >= known


def test_an_unrecorded_cudnn_may_plan_as_any_that_was_asked():
    versions = convolution.versions(A100.capability)
    of = [convolution.recorded(A100.capability, torch) for torch in versions]
    apart = 0
    every = [text for text in sorted(set.intersection(*map(set, of))) if "32" in of[0][text]]
    for text in every[::80]:
        image, *rest = json.loads(text)
        problem = ((32, *image), *rest)
        most = max(known[text]["32"][0] for known in of if "32" in known[text])
        apart += most > alike._near(0, problem, replace(A100, torch=versions[0])).most
        assert alike.limits.__wrapped__(0, problem, replace(A100, torch=(2, 7))).most >= most
    assert apart


@pytest.mark.parametrize("dtype", [0, 1])
def test_cudnn_8_may_take_winograds_transforms_and_a_workspace_of_its_own(dtype):
    image, *rest = ((66, *ODD[0][1:]), *ODD[1:4], dtype)
    operands = alike._kind(image[1:], *rest).operands(image[0])
    old, later = (
        alike.limits(0, (image, *rest), replace(A100, torch=torch)) for torch in ((2, 3), (2, 4))
    )
    assert old.least == later.least == 0
    assert old.most >= 2.25 * operands * (1 + dtype) > later.most
    small = ((1, 8, 8, 8), (8, 8, 1, 1), (1, 1, 0, 0, 1, 1), 1, dtype)
    most = {
        capability: alike.limits(0, small, replace(A100, capability=capability, torch=(2, 0))).most
        for capability in ((7, 5), (8, 0))
    }
    assert most[8, 0] == 128 << 20 > most[7, 5]


def test_a_benchmark_may_keep_any_engine_that_it_tries(monkeypatch):
    tried = replace(A100, cudnn_benchmark=True)
    monkeypatch.setattr(cudnn, "workspaces", lambda *_, **__: (500, 90_000_000, 0))
    within = alike.limits(0, ODD, tried)
    assert within.least == 0
    assert within.most >= 90_000_000


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [
        *(((7, 5), 2), ((9, 0), 0)),
        *(
            pytest.param(capability, dtype, marks=pytest.mark.nightly)
            for capability in ((6, 1), (7, 5), (8, 6), (9, 0), (12, 0))
            for dtype in (0, 1, 2)
        ),
    ],
)
def test_every_gpu_and_type_has_limits(capability, dtype):
    target = replace(A100, capability=capability)
    for odd, direction, last in itertools.product((ODD, VOLUME), (0, 1, 2), (False, True)):
        problem = (*odd[:4], dtype, *((True,) if last else ()))
        within = alike.limits(direction, problem, target)
        assert within.least <= within.likely <= within.most


def test_other_types_stay_uncounted():
    call = KernelCall("convolution", (0,))
    assert uncounted([call], A100) == (convolution.UNKNOWN,)
    assert bounds([call], A100) == ()
