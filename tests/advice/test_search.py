"""The search finds what trying every size would, with few exact runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.advice.search import Bounds, Sample, largest

CAPACITY = 1 << 34


class Card:
    """A card whose memory in use grows with the size; it keeps what it was asked."""

    def __init__(self, needed, capacity=CAPACITY):
        self.needed, self.capacity, self.asked = needed, capacity, []

    def __call__(self, size):
        assert size not in self.asked, "a size is run once"
        self.asked.append(size)
        spare = self.capacity - self.needed(size)
        return Sample(holds=spare >= 0, spare=spare)


@given(
    steps=st.lists(st.integers(1, CAPACITY // 8), min_size=1, max_size=60),
    start=st.integers(1, 60),
)
def test_any_growing_memory_is_searched_to_the_size(steps, start):
    levels = [sum(steps[: size + 1]) for size in range(len(steps))]
    card = Card(lambda size: levels[size - 1])
    found = largest(card, range(1, len(levels) + 1), start)
    wanted = sum(level <= CAPACITY for level in levels)
    assert (found.best or 0) == wanted
    assert found.above == (wanted + 1 if wanted < len(levels) else None)


@given(
    base=st.integers(0, CAPACITY // 2),
    slope=st.integers(1 << 10, CAPACITY // 2),
    start=st.integers(1, 512),
)
def test_memory_that_grows_evenly_takes_few_runs(base, slope, start):
    card = Card(lambda size: base + slope * size)
    found = largest(card, range(1, 1 << 20), start)
    assert found.best is None or base + slope * found.best <= CAPACITY
    assert found.above is None or base + slope * found.above > CAPACITY
    assert len(card.asked) <= 8


@pytest.mark.parametrize(
    ("needed", "start", "most"),
    [
        (lambda size: (8 << 30) + 900_000 * size, 512, 4),
        (lambda size: (8 << 30) + 900_000 * size, 40_000, 5),
        (lambda size: max(9 << 30, (6 << 30) + 900_000 * size), 512, 6),
        (lambda size: (8 << 30) + 60 * size * size, 512, 9),
        (lambda size: 1, 512, 4),
    ],
    ids=["even", "even, from above", "flat at first", "quadratic", "all fit"],
)
def test_a_context_is_found_with_so_many_runs(needed, start, most):
    card = Card(needed)
    found = largest(card, range(8, 131_073, 8), start)
    assert needed(found.best) <= CAPACITY
    assert found.above is None or needed(found.above) > CAPACITY
    assert found.above is None or found.above - found.best <= 64
    assert len(card.asked) <= most


@given(base=st.integers(1 << 20, CAPACITY // 2), slope=st.integers(1 << 16, 1 << 24))
def test_no_size_is_asked_about_that_a_line_through_two_known_ones_excludes(base, slope):
    card = Card(lambda size: base + slope * size)
    found = largest(card, range(8, 1 << 24, 8), 512)
    for size in card.asked[2:]:
        bound = (CAPACITY - base) / slope
        assert size <= max(bound * 1.02 + 64, found.above or 0)


def test_sizes_double_at_most_three_times_while_nothing_tells_a_bound():
    # Up to 4,000 tokens the optimizer's step is the peak: a line through two of these never rises.
    card = Card(lambda size: max(9 << 30, 2_500_000 * size))
    largest(card, range(8, 1 << 24, 8), 8)
    pairs = zip(card.asked, card.asked[1:], strict=False)
    assert all(later <= 17 * size for size, later in pairs)


def test_a_size_that_cannot_be_run_does_not_hold():
    asked = []

    def ask(size):
        asked.append(size)
        known = size <= 1000
        return Sample(holds=known, spare=CAPACITY - size if known else None)

    assert largest(ask, range(8, 1 << 20, 8), 512) == Bounds(best=1000, above=1008)
    assert max(asked) <= 16 * 1000


def test_sizes_may_be_any_ascending_ones():
    found = largest(Card(lambda size: size, capacity=30), (1, 2, 4, 8, 16, 32), 32)
    assert found == Bounds(best=16, above=32)


def test_not_even_the_first_may_hold():
    assert largest(Card(lambda size: 1 << 40), range(1, 100), 8) == Bounds(best=None, above=1)


def test_a_size_that_two_smaller_ones_exclude_is_run_to_confirm_it_and_else_not():
    sizes = (1, 2, 4, 8, 16)
    asked = {}
    for confirm in (True, False):
        card = Card(lambda size: (8 << 30) + (3 << 30) * size)
        found = largest(card, sizes, 1, confirm=confirm)
        assert found.best == 2
        asked[confirm] = card.asked
    assert 4 in asked[True]
    assert 4 not in asked[False]
