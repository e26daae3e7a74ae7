"""What is taken to find the nonzero, the different and the largest elements, on five GPUs.

Recorded with PyTorch's CUDA build over the stand-in driver by ``benchmarks/record_counts.py``.
"""

import json
import pathlib

import pytest

from memcalc.kernels import cub
from memcalc.kernels.formulas import KernelCall, scratch, uncounted
from memcalc.kernels.target import Target

ROOT = pathlib.Path(__file__).parents[2]
RECORDED = sorted((ROOT / "evidence" / "standin").glob("counts-*.json"))
BYTES = {"int64": 8, "int32": 4, "float32": 4, "float16": 2, "int16": 2, "uint8": 1}
CHOSEN = 5


def births(call, target):
    return [word for word in scratch(call, target).after if word > 0]


def expected(name, target):
    """Bytes of each allocation; ``None`` in place of what nobody knows."""
    *kind, size, dtype = name.split()
    if name.startswith("nonzero"):
        count = int(dtype)
        return [
            *(4, cub.count_nonzero(count, target), count * 8),
            cub.select(count, target),
        ]
    width, real = BYTES[dtype], "float" in dtype
    if name.startswith("topk"):
        rows, length = int(kind[1]), int(size)
        found = births(KernelCall("radix_topk", (rows, length, width)), target)
        return [rows * CHOSEN * width, rows * CHOSEN * 8, *found]
    count = int(size)
    values, places = count * width, count * 8
    if len(kind) == 1:
        known = cub.knows_keys(count, width, real, target)
        keys = cub.sort_keys(count, target, width, width * 8, real=real) if known else None
        return [values, keys, values, 8, cub.distinct(count, width, target, real=real)]
    known = cub.knows_pairs(count, width, 8, target)
    pairs = cub.sort_pairs(count, width, 8, width * 8, target) if known else None
    flags, runs = cub.sum_flags(count, target), cub.run_lengths(count)
    return [values, places, places, pairs, places, places, flags, values, 8, places, runs]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_piece_is_taken_as_it_was_recorded(path):
    recorded = json.loads(path.read_text())
    target = Target(
        capability=tuple(recorded["capability"]),
        multiprocessors=recorded["multiprocessors"],
        torch=(2, 13),
    )
    for name, sizes in recorded["cases"].items():
        said = expected(name, target)
        assert len(said) == len(sizes), name
        unknown = [at for at, size in enumerate(said) if size is None]
        assert [s for at, s in enumerate(sizes) if at not in unknown] == [
            s for s in said if s is not None
        ], name
        # Narrow keys are sorted in a way whose counters only a GPU can tell.
        assert (
            not unknown
            or (target.architecture.cub < 9 and " of " in name)
            or any(narrow in name for narrow in ("int16", "float16", "uint8"))
        ), name
    assert len(recorded["cases"]) == 92


@pytest.mark.parametrize(("name", "real"), [("sort_keys", (False,)), ("sort_pairs", ())])
def test_what_sorting_many_narrow_keys_takes_besides_is_named(name, real):
    target = Target(capability=(8, 0), multiprocessors=108, torch=(2, 13))
    said = [
        uncounted([KernelCall(name, (count, width, *real))], target)
        for count, width in ((1_000_000, 2), (2000, 2), (1_000_000, 8))
    ]
    assert [len(one) for one in said] == [1, 0, 0]


def test_there_are_recordings():
    assert len(RECORDED) == 5
