"""The CUDA path's launches: planned here, and as recorded on PyTorch's CUDA build with Triton."""

import json
import runpy
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memcalc.optim import table
from memcalc.optim.scalars import Scalars

EVIDENCE = Path(__file__).parent.parent.parent / "evidence" / "standin"
COLUMNS = {"adam_32bit": 5, "adam_8bit": 7, "adamw_bf16": 7}


def located(words, count, columns, programs):
    """What ``kernels._locate`` gives each program: (its tensor, which of the tensor's it is)."""
    starts, low, high = np.array(words[:count]), np.zeros(programs, int), np.full(programs, count)
    program = np.arange(programs)
    for _ in range(table.depth(count)):
        middle = (low + high) // 2
        after = starts[np.minimum(middle, count - 1)] > program
        assert (middle < count).all()
        low, high = np.where(after, low, middle), np.where(after, middle, high)
    return low, program - starts[low]


def assert_each_element_once(words, columns, programs, span):
    """A tensor's programs are 0, 1, ... as far as it reaches: spans that do not meet."""
    count = len(words) // (1 + columns)
    assert len(words) == count * (1 + columns)
    tensors, which = located(words, count, columns, programs)
    for index in range(count):
        elements = words[count + index * columns]
        own = np.sort(which[tensors == index])
        assert (own == np.arange(len(own))).all()
        assert (len(own) - 1) * span < elements <= len(own) * span


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=70), st.sampled_from([1024, 2048]))
def test_every_element_of_a_launch_belongs_to_one_program(sizes, span):
    rows = [[n, 0, 0, 0, 0] for n in sizes]
    words, programs = table.fill(rows, span)
    assert_each_element_once(words, 5, programs, span)


@given(st.lists(st.booleans(), max_size=20))
def test_every_tensor_is_in_one_launch_and_each_launch_is_of_one_kind(evens):
    launches = list(table.split(evens))
    assert sorted(i for chosen, _ in launches for i in chosen) == list(range(len(evens)))
    assert all(evens[i] is kind for chosen, kind in launches for i in chosen)
    assert all(chosen for chosen, _ in launches)


@pytest.fixture(scope="module")
def cases():
    return json.loads((EVIDENCE / "launches.json").read_text())["cases"]


def rows_of(launch):
    columns = COLUMNS[launch["kernel"]]
    words = launch["table"]
    count = len(words) // (1 + columns)
    return [words[count + i * columns : count + (i + 1) * columns] for i in range(count)]


def test_each_recorded_launch_covers_every_element_once(cases):
    for case in cases:
        for launch in case["launches"]:
            programs, span = prod(launch["grid"]), table.SPANS[is_even(launch)]
            assert_each_element_once(launch["table"], COLUMNS[launch["kernel"]], programs, span)


def is_even(launch):
    """Whether every row of a launch allows wide loads; they must agree."""
    last = 6 if launch["kernel"] == "adamw_bf16" else 5
    kinds = {table.is_even(row[0], row[1:last]) for row in rows_of(launch)}
    assert len(kinds) == 1
    return kinds.pop()


def test_the_wide_kernel_is_given_aligned_rows_only(cases):
    assert {is_even(launch) for case in cases for launch in case["launches"]} == {True, False}


def test_the_scalars_that_reach_the_driver_are_those_of_the_second_step(cases):
    for case in cases:
        for launch in case["launches"]:
            decoupled = case["optimizer"] != "Adam8bit"
            decay = 0.01 if decoupled else 0.0
            s = Scalars(
                lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=decay, step=2,
                maximize=False, decoupled=decoupled,
            )  # fmt: skip
            expected = torch.tensor(s.arguments(), dtype=torch.float32).tolist()
            assert launch["scalars"] == expected


KERNELS = json.loads((EVIDENCE.parent / "kernels.json").read_text())


def test_no_kernel_spills_on_any_gpu_and_none_lacks_wide_loads():
    assert {v["capability"] for v in KERNELS["variants"]} == {75, 80, 86, 89, 90, 100, 120}
    for variant in KERNELS["variants"]:
        assert variant["stack_bytes"] == 0, variant
        assert not variant["local"], variant
        assert variant["wide_loads"] or not variant["wide"], variant
        # A multiprocessor has 65,536 registers: at least four programs of 256 threads run on it.
        assert variant["registers"] <= 65_536 // (4 * 256), variant


def test_the_documented_registers_are_the_recorded_ones():
    resources = runpy.run_path(str(EVIDENCE.parent.parent / "benchmarks" / "kernel_resources.py"))
    page = (EVIDENCE.parent.parent / "docs" / "optimizers.md").read_text()
    assert resources["document"](KERNELS["variants"]) in page
