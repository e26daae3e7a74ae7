"""What is typed for an option's value."""

import pytest

from memcalc.cli.values import VALUES
from memcalc.errors import UsageError


def test_tokens_are_typed_as_people_say_them():
    said = {"10M": 1e7, "1.5b": 1.5e9, "15T": 15e12, "300 k": 3e5, "2e9": 2e9, "100": 100.0}
    assert {text: VALUES["tokens"].read("--tokens", text) for text in said} == said
    with pytest.raises(UsageError, match="a number above 0"):
        VALUES["tokens"].read("--tokens", "1.2.3B")
