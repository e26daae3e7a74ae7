"""Counts and bytes as text, and text as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.cli.values import VALUES
from memcalc.errors import UsageError
from memcalc.units import MIB, format_count, parse_bytes, printed_bytes


@given(st.integers(0, 1 << 60))
def test_exact_bytes_survive_the_trip_through_text(count):
    assert parse_bytes(f"{count} B") == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("1 KiB", 1024), ("1kB", 1000), ("14.5 GiB", 15569256448), ("0.1 GB", 100_000_000)],
)
def test_sizes_are_read_in_both_bases(text, count):
    assert parse_bytes(text) == count


BITS = r"is a size in bits: write (GiB|GB|MiB) for bytes"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((one, "not a size") for one in ("", "12", "GiB", "1.5.2 GiB", "-1 GiB", "1 GiBs")),
        *((one, BITS) for one in ("1 Gib", "15 Gb", "3.5Mib")),
        ("99999999999999999999 GiB", "no size that fits a machine"),
    ],
)
def test_what_is_no_size_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "half"), [("555 MiB", MIB // 2), ("1 KiB", 512), ("7 B", 0), ("1.5 GiB", MIB * 51.2)]
)
def test_a_printed_figure_stands_for_all_that_round_to_it(text, half):
    low, high = printed_bytes(text)
    assert (high - low) / 2 == pytest.approx(half, abs=1)


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (66_362_880, "66.4M"), (999_400_000, "999M"), (999_885_952, "1B")],
)
def test_a_count_that_rounds_up_to_a_thousand_takes_the_next_letter(count, text):
    assert format_count(count) == text


def test_tokens_are_typed_as_people_say_them():
    said = {"10M": 1e7, "1.5b": 1.5e9, "15T": 15e12, "300 k": 3e5, "2e9": 2e9, "100": 100.0}
    assert {text: VALUES["tokens"].read("--tokens", text) for text in said} == said
    with pytest.raises(UsageError, match="a number above 0"):
        VALUES["tokens"].read("--tokens", "1.2.3B")
