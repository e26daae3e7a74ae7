"""CuDNN itself, asked without a device, held against what it said under PyTorch's own code."""

import json
import math
import pathlib

import pytest

from memcalc.kernels import convolution, cudnn
from memcalc.kernels.target import Target

ROOT = pathlib.Path(__file__).parent.parent.parent
PROBLEM = ((2, 7, 31, 31), (24, 7, 3, 3), (1, 1, 1, 1, 1, 1), 1, 0)
"""Of sizes that nobody recorded."""
TORCH = next((torch for torch in ((2, 13), (2, 14), (2, 15)) if cudnn.answers_for(torch)), None)
installed = pytest.mark.skipif(TORCH is None, reason="cuDNN and cuBLASLt are not installed")


def a100(torch=TORCH or (2, 13)):
    return Target(capability=(8, 0), multiprocessors=108, torch=torch)


def recorded():
    file = ROOT / "configs" / convolution.FOLDER / "8.0" / "9.20.json"
    entries = json.loads(file.read_text())["recorded"]
    entry = next(entry for entry in entries if entry["how"] == "the real library, planning only")
    known = convolution.recorded((8, 0), TORCH)
    for name, sizes in [(name, known[name]) for name in entry["problems"]][::7]:
        image, weight, moves, groups, dtype = json.loads(name)
        rest = (tuple(weight), tuple(moves), groups, dtype)
        for batch in ("1", "32"):
            yield ((int(batch), *image), *rest), sizes[batch]


@installed
def test_the_library_says_what_it_said_under_pytorch():
    for problem, sizes in recorded():
        for direction in convolution.Direction:
            assert cudnn.workspace(direction, problem, a100()) == sizes[direction], problem


@installed
def test_a_problem_that_nobody_recorded_is_asked_of_the_library():
    size = convolution.workspace(convolution.Direction.OUTPUT, PROBLEM, a100())
    assert size == cudnn.workspace(convolution.Direction.OUTPUT, PROBLEM, a100()) is not None


@installed
def test_fp16_with_channels_last_needs_no_copy_into_that_layout():
    image, weight, moves = (32, 64, 56, 56), (64, 64, 3, 3), (1, 1, 1, 1, 1, 1)
    rows, last = (
        cudnn.workspace(convolution.Direction.OUTPUT, (image, weight, moves, 1, 1, *lie), a100())
        for lie in ((), (True,))
    )
    moved = 2 * 32 * 64 * 56 * 56
    assert rows >= moved > last


@installed
def test_a_convolution_of_volumes_is_asked_like_any_other():
    image, weight, moves = (2, 32, 64, 64, 64), (32, 32, 3, 3, 3), (1,) * 9
    sizes = [cudnn.workspace(way, (image, weight, moves, 1, 1), a100()) for way in range(3)]
    kept = 2 * math.prod(image)
    assert all(size >= kept for size in sizes)


@installed
def test_a_problem_that_cannot_be_has_no_answer():
    image, (_, *weight), *rest = PROBLEM
    assert cudnn.workspace(0, (image, (24, 5, *weight[1:]), *rest), a100()) is None


@installed
def test_the_library_of_another_pytorch_is_not_asked(monkeypatch):
    monkeypatch.delenv(cudnn.FOLDERS, raising=False)
    other = next(torch for torch in ((2, 13), (2, 15)) if not cudnn.answers_for(torch))
    assert cudnn.workspaces(convolution.Direction.OUTPUT, PROBLEM, a100(other)) == ()
    assert convolution.workspace(convolution.Direction.OUTPUT, PROBLEM, a100(other)) is None


class Library:
    """Knows its version alone."""

    number = 90100

    def __getattr__(self, name):
        return type("Function", (), {"__call__": lambda _: self.number})()


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(cudnn, "_load", lambda name: Library())
    cudnn._library.cache_clear()
    yield Library
    cudnn._library.cache_clear()
    cudnn.workspaces.cache_clear()


def test_a_library_that_ends_the_process_is_not_asked(monkeypatch, library):
    monkeypatch.setattr(cudnn, "planned", lambda *_: iter([5]))
    of = {"multiprocessors": 148, "torch": (2, 9)}
    targets = [Target(capability=(major, 0), **of) for major in (9, 10)]
    library.number = 91002
    assert [cudnn.workspaces(0, PROBLEM, target) for target in targets] == [(5,), ()]


def test_a_library_that_takes_no_description_is_not_asked(monkeypatch, tmp_path, library):
    monkeypatch.setenv(cudnn.FOLDERS, str(tmp_path))
    of_nine = ((2, 8), (2, 9), (2, 10))
    for number, found, oldest in ((90100, None, ()), (91002, "9.10.2", of_nine)):
        cudnn._library.cache_clear()
        library.number = number
        assert cudnn.version() == found
        answered = [torch for minor in range(16) if cudnn.answers_for(torch := (2, minor))]
        named = [(2, minor) for minor in range(11, 16)] if found else []
        assert answered == [*oldest, *named]


def test_without_the_library_a_size_that_nobody_recorded_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(cudnn, "_load", lambda name: None)
    cudnn._library.cache_clear()
    cudnn.workspaces.cache_clear()
    try:
        assert cudnn.version() is None
        assert convolution.workspace(convolution.Direction.OUTPUT, PROBLEM, a100()) is None
    finally:
        cudnn._library.cache_clear()
        cudnn.workspaces.cache_clear()
