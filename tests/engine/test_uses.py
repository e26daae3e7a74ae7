"""A check of a made-up number passes, and other branches are told from checks by their bytecode."""

import sys

import pytest

from memcalc.engine.values import uses
from tests.engine import checked_code as code_of


class Truth:
    """Remembers which value of itself would raise where it is tested."""

    def __init__(self, value=True):
        self.value = value
        self.fails = "not tested"

    def __bool__(self):
        self.fails = uses.failing_value(sys._getframe(1))
        return self.value


class Compared:
    def __init__(self):
        self.fails = "not compared"

    def __lt__(self, other):
        self.fails = uses.failing_value(sys._getframe(1))
        return True

    __gt__ = __le__ = __ge__ = below = __lt__


@pytest.mark.parametrize(
    ("code", "fails"),
    [
        (code_of.asserted, False),
        (code_of.asserted_with_words, False),
        (code_of.raised_if, True),
        (code_of.raised_unless, False),
        (code_of.raised_in_else, False),
        (code_of.raised_later, None),
        (code_of.returned, None),
        (code_of.looped, None),
        (bool, None),
    ],
)
def test_the_value_that_raises_is_found(code, fails):
    tested = Truth(value=fails is not True)
    code(tested)
    assert tested.fails is fails


@pytest.mark.parametrize(
    ("code", "fails"),
    [
        (code_of.assert_above, False),
        (code_of.assert_between, False),
        (code_of.keep, None),
        (code_of.assert_call, False),
    ],
)
def test_comparisons_in_checks_are_found(code, fails):
    compared = Compared()
    code(compared)
    assert compared.fails is fails


def test_a_comparison_that_raises_is_found():
    compared = Compared()
    with pytest.raises(ValueError):
        code_of.raise_above(compared)
    assert compared.fails is True
