"""Counts and bytes as text."""

import pytest

from memcalc.units import format_count


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (66_362_880, "66.4M"), (999_400_000, "999M"), (999_885_952, "1B")],
)
def test_a_count_that_rounds_up_to_a_thousand_takes_the_next_letter(count, text):
    assert format_count(count) == text
