"""Formulas from files are arithmetic, or they are refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.symbolic.expression import FormulaError, compiled


@given(
    terms=st.lists(
        st.tuples(st.integers(-99, 99), st.integers(0, 3), st.integers(0, 3)), min_size=1
    ),
    b=st.integers(2, 1 << 20),
    s=st.integers(2, 1 << 20),
)
def test_a_polynomial_is_computed_exactly(terms, b, s):
    text = " + ".join(f"({factor})*b**{i}*s**{j}" for factor, i, j in terms)
    assert compiled([text])(b, s) == (sum(f * b**i * s**j for f, i, j in terms),)


def test_every_form_that_pytorch_writes_is_understood():
    texts = [
        "128*math.ceil(s / 32) + 12*b*max(1, 32*math.ceil(s / 32))",
        "((-1)*s) // 8",
        "(s % 8) == 0",
        "s < 5 and s != 3 or not b > 3",
        "(s if s > 3 else b)",
        "math.trunc((s / 3)) + math.floor(s / b)",
    ]
    s, b = 77, 5
    wanted = (128 * math.ceil(77 / 32) + 12 * 5 * 96, -10, False, False, 77, 25 + 15)
    assert compiled(texts)(b, s) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "b.__class__",
        "(lambda: 1)()",
        "[b for b in s]",
        "open('x')",
        "x + 1",
        "'text'",
        "math.factorial(b)",
        "b), (s",
        "b := 3",
        "max(b, key=s)",
        "math",
        "max",
        "b b",
    ],
)
def test_anything_but_arithmetic_is_refused(text):
    with pytest.raises(FormulaError):
        compiled([text])
