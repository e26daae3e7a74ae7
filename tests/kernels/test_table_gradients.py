"""Gradients of tables with few rows, each of which is looked up often."""

import pytest

from memcalc.kernels.indexing import embedding_backward
from memcalc.kernels.target import Target

A100 = Target(capability=(8, 0), multiprocessors=108, torch=(2, 13))


def parts(rows, indices=20_000, *, torch=(2, 13), **how):
    """What is made last, and held least long, of a table with rows of 64 numbers."""
    target = Target(capability=(8, 0), multiprocessors=108, torch=torch, **how)
    _, after = embedding_backward(indices, rows, 64, 8, target)
    return [word for word in after if word > 0][-1]


@pytest.mark.parametrize(
    ("rows", "indices", "few"),
    [
        *((431, 20_000, True), (432, 20_000, False), (133, 4000, True), (134, 4000, False)),
        *((132, 3999, True), (133, 3999, False), (2, 4096, True)),
    ],
)
def test_parts_of_few_long_rows_are_added_without_their_sums(rows, indices, few):
    """As over the driver with 2.11, 2.13 and 2.14; rows, indices."""
    count = indices // 10 + rows
    assert parts(rows, indices) == (count * 8 if few else count * 64 * 4)


def test_before_and_where_sums_are_ordered_they_are_summed_first():
    assert parts(50, torch=(2, 10)) == parts(50, ordered=True) == 2050 * 64 * 4


def test_halves_are_added_in_floats_and_doubles_stay_so():
    for size, last in ((2, 50 * 64 * 4), (4, 2050 * 8), (8, 2050 * 8)):
        _, after = embedding_backward(20_000, 50, 64, 8, A100, element_bytes=size)
        assert [word for word in after if word > 0][-1] == last
    _, after = embedding_backward(20_000, 50, 64, 8, A100, element_bytes=8, bag=True)
    assert [word for word in after if word > 0][-1] == 2050 * 64 * 8
