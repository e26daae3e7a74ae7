"""Rounded figures of a table add up to its total."""

from hypothesis import example, given
from hypothesis import strategies as st

from memcalc.units import GIB, MIB, Unit

UNIT = Unit("MiB", MIB)


def tenths(text):
    return 0 if text == "<0.1" else round(10 * float(text.replace(",", "")))


@given(st.lists(st.integers(0, GIB), min_size=1, max_size=20))
@example([32882, 32882, 510953])
def test_rounded_parts_add_up_and_none_is_off_by_more_than_a_step(parts):
    shown = UNIT.numbers(parts)
    assert sum(map(tenths, shown)) == tenths(UNIT.number(sum(parts)))
    assert all(abs(tenths(s) - 10 * p / MIB) <= 1 for s, p in zip(shown, parts, strict=True))


def test_parts_that_are_equal_are_written_alike_where_another_can_give_way():
    third = MIB * 103 // 300
    assert UNIT.numbers([third, third, MIB - 2 * third]) == ["0.3", "0.3", "0.4"]


def test_a_gap_is_the_difference_of_the_figures_beside_it():
    before, after = int(13.84 * MIB), int(15.96 * MIB)
    assert (UNIT.number(before), UNIT.number(after)) == ("13.8", "16.0")
    assert UNIT.rest(after, before) == "2.2"
    assert UNIT.rest(before + 1, before) == "<0.1"
