"""The syntax of PYTORCH_ALLOC_CONF: what the real parser takes, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.allocator.settings import (
    NO_SIZE_CHANGE,
    SINCE_2_13,
    UNLIMITED,
    AllocatorSettings,
    parse_alloc_conf,
    round_size,
)
from memcalc.errors import UsageError

MIB = 1 << 20


def test_an_empty_configuration_is_the_defaults():
    assert parse_alloc_conf("") == AllocatorSettings()


def test_all_keys_are_read_whatever_their_order_and_spacing():
    settings = parse_alloc_conf(
        " max_split_size_mb: 128 , large_segment_size_mb:64,expandable_segments:True,"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,"
        "max_non_split_rounding_mb:70,roundup_power2_divisions:4,backend:native,"
    )
    assert settings == AllocatorSettings(
        max_split=128 * MIB,
        max_non_split_rounding=70 * MIB,
        divisions=(4,) * 16,
        large_segment=64 * MIB,
        expandable=True,
        gc_threshold=0.8,
        memory_fraction=0.5,
    )


@pytest.mark.parametrize("key", sorted(NO_SIZE_CHANGE))
def test_keys_that_change_no_size_are_taken(key):
    settings = parse_alloc_conf(f"{key}:True,expandable_segments:True")
    assert settings == AllocatorSettings(expandable=True)


@pytest.mark.parametrize("key", sorted(SINCE_2_13))
def test_keys_that_2_11_refuses_are_refused_for_2_11(key):
    with pytest.raises(UsageError, match=r"2\.11 does not know"):
        parse_alloc_conf(f"{key}:True", torch=(2, 11))


# Each refused by the parser of torch 2.11.0 and 2.13.0, run on a stand-in driver.
REFUSED = [
    "foo:1",
    "max_split_size:1",
    "max_split_size_mb:19",
    "max_split_size_mb:0",
    "max_split_size_mb:abc",
    "max_split_size_mb=128",
    "max_split_size_mb",
    "max_split_size_mb:128garbage_collection_threshold:0.6",
    "max_split_size_mb:30,large_segment_size_mb:64",
    "large_segment_size_mb:64,max_split_size_mb:30",
    "large_segment_size_mb:64,max_non_split_rounding_mb:20",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[63:4]",
    "roundup_power2_divisions:[64:5]",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:1.5",
    "large_segment_size_mb:10",
    "large_segment_size_mb:0",
    "per_process_memory_fraction:1.5",
    "per_process_memory_fraction:0.0",
    "expandable_segments:true",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_pytorch_refuses_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError) as refused:
        parse_alloc_conf(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["max_split_size_mb:-5", "max_split_size_mb:200.5"])
def test_numbers_pytorch_would_bend_are_refused(text):
    with pytest.raises(UsageError, match="whole number of MiB"):
        parse_alloc_conf(text)


def test_another_backend_is_refused_because_it_is_not_modelled():
    with pytest.raises(UsageError, match="backend:native"):
        parse_alloc_conf("backend:cudaMallocAsync")


def test_an_unknown_key_is_answered_with_the_closest_one():
    with pytest.raises(UsageError, match="did you mean max_split_size_mb"):
        parse_alloc_conf("max_splitsize_mb:128")


def test_a_huge_split_size_is_cut_to_whole_mib_below_the_limit():
    # torch 2.13: memory_stats()["max_split_size"] is then -1048576, that is 2**64 - 2**20
    assert parse_alloc_conf("max_split_size_mb:99999999999999").max_split == 2**64 - 2**20
    assert parse_alloc_conf("").max_split == UNLIMITED == 2**64 - 1


# Block sizes in MiB for requests of n MiB and one byte, read from allocated_bytes of torch 2.11.0
# and 2.13.0 on a stand-in driver.
REQUESTS = (1, 3, 9, 40, 70, 140, 300, 600, 3000)
ROUNDED = {
    "[64:4,256:8,>:16]": (1.25, 3.5, 10, 48, 80, None, 320, 608, 3072),
    "[64:4,256:8,>:0]": (1.25, 3.5, 10, 48, 80, None, 320, None, None),
    "[>:16]": (None, 3.125, 9.5, 42, 72, 144, 304, 608, 3072),
    "[1:4,>:2]": (1.25, 4, 12, 48, 96, 192, 384, 768, 3072),
    "[>:16,64:4]": (1.25, 3.5, 10, 48, 80, 144, 304, 608, 3072),
    "[65536:4,>:16]": (1.25, 3.5, 10, 48, 80, 160, 320, 640, 3072),
    "[64:4,64:2]": (1.25, 3.5, 10, 48, 96, None, None, None, None),
    "[16:4,8:8]": (1.25, 3.5, 10, None, None, None, None, None, None),
    "[32:4,512:2,128:8]": (1.25, 3.5, 10, 48, None, 144, None, 768, None),
    "[]": (None,) * 9,
}


@pytest.mark.parametrize("listed", sorted(ROUNDED))
def test_lists_of_divisions_round_as_pytorch_does(listed):
    settings = parse_alloc_conf(f"roundup_power2_divisions:{listed}")
    for request, block in zip(REQUESTS, ROUNDED[listed], strict=True):
        size = request * MIB + 1
        expected = size + 511 if block is None else int(block * MIB)
        assert round_size(size, settings.divisions) == expected, request


def test_up_to_2_9_the_rest_of_a_list_overwrites_its_last_interval():
    text = "roundup_power2_divisions:[64:4,256:8,>:16]"
    assert parse_alloc_conf(text, torch=(2, 9)).divisions[8] == 16
    assert parse_alloc_conf(text, torch=(2, 11)).divisions[8] == 8


@given(st.integers(1, 1 << 40), st.sampled_from([0, 1, 2, 4, 8, 64]))
def test_rounding_never_shrinks_and_wastes_at_most_one_step(size, steps):
    rounded = round_size(size, (steps,) * 16)
    assert rounded % 512 == 0
    assert rounded >= size
    assert rounded - size < max(512, size // max(steps, 1) if steps > 1 else 512)
    assert round_size(rounded, (steps,) * 16) == rounded


KEYS = st.sampled_from(
    ["max_split_size_mb", "roundup_power2_divisions", "expandable_segments", "backend", "x"]
)
WORDS = st.text(alphabet="0123456789:[],>TrueFalse.-mb ", max_size=12)


@given(st.lists(st.tuples(KEYS, WORDS), max_size=4))
def test_any_text_is_read_or_refused_and_never_breaks(parts):
    try:
        settings = parse_alloc_conf(",".join(f"{key}:{word}" for key, word in parts))
    except UsageError as error:
        refusal = str(error)
    else:
        assert len(settings.divisions) == 16
        return
    assert refusal
    assert "\n" not in refusal


@given(
    split=st.none() | st.integers(20, 10**6),
    expandable=st.none() | st.booleans(),
    threshold=st.none() | st.floats(0.01, 0.99),
)
def test_what_is_written_is_what_is_read(split, expandable, threshold):
    written = {
        "max_split_size_mb": split,
        "expandable_segments": expandable,
        "garbage_collection_threshold": None if threshold is None else f"{threshold:.6f}",
    }
    text = ",".join(f"{key}:{value}" for key, value in written.items() if value is not None)
    settings = parse_alloc_conf(text)
    assert settings.max_split == (UNLIMITED if split is None else split * MIB)
    assert settings.expandable is bool(expandable)
    assert settings.gc_threshold == (0.0 if threshold is None else float(f"{threshold:.6f}"))
