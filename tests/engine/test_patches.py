"""Replaced functions of packages: as soon as they are there, and as they were afterwards."""

import fractions

from memcalc.engine.patches import Patches


def test_a_class_that_another_release_lacks_is_left_alone():
    with Patches() as patches:
        patches.wrap_later("fractions", "Fraction.limit_denominator", lambda original, *_: 7)
        patches.wrap_later("fractions", "Unheard.of", lambda original, *_: 7)
        assert fractions.Fraction(1, 3).limit_denominator() == 7
    assert fractions.Fraction(1, 3).limit_denominator() == fractions.Fraction(1, 3)
