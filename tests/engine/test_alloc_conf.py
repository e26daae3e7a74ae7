"""The syntax of PYTORCH_ALLOC_CONF: what the real parser takes, and what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.engine.alloc_conf import (
    NO_SIZE_CHANGE,
    SINCE_2_13,
    AllocatorSettings,
    check_environment,
    parse_alloc_conf,
    without_fraction,
)
from memcalc.errors import UsageError

EVERY_KEY = (
    " max_split_size_mb: 128 , large_segment_size_mb:64,expandable_segments:True,"
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,"
    "max_non_split_rounding_mb:70,roundup_power2_divisions:4,backend:native,"
)


def test_all_keys_are_read_whatever_their_order_and_spacing():
    assert parse_alloc_conf("") == AllocatorSettings()
    settings = parse_alloc_conf(EVERY_KEY)
    assert settings == AllocatorSettings(text=EVERY_KEY, gc_threshold=0.8, memory_fraction=0.5)
    assert (settings.reservable_bytes(999), parse_alloc_conf("").reservable_bytes(999)) == (
        499,
        None,
    )
    assert parse_alloc_conf(without_fraction(EVERY_KEY)).memory_fraction == 1.0


@pytest.mark.parametrize("key", sorted(NO_SIZE_CHANGE))
def test_keys_that_change_no_size_are_taken(key):
    text = f"{key}:True,expandable_segments:True"
    assert parse_alloc_conf(text) == AllocatorSettings(text=text)


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


TAKEN = [
    "",
    "max_split_size_mb:20",
    "large_segment_size_mb:64,max_split_size_mb:64,max_non_split_rounding_mb:64",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[64:4,256:8,>:16]",
    "roundup_power2_divisions:[64:0,>:0]",
    "roundup_power2_divisions:[>:16,64:4]",
    "roundup_power2_divisions:[65536:4,>:16]",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:1",
    "per_process_memory_fraction:0.25",
]


def read_by_pytorch(texts):
    """Whether PyTorch's own parser takes each of these, in this fork."""
    from memcalc.engine import torch_internals as internals

    taken = []
    for text in texts:
        try:
            internals.set_allocator(text)
            taken.append(True)
        except (RuntimeError, ValueError):
            taken.append(False)
    return taken


def test_pytorch_takes_what_is_taken_and_refuses_what_is_refused(forked):
    for text in TAKEN:
        assert parse_alloc_conf(text).text == text
    said = dict(zip((*TAKEN, *REFUSED), forked(read_by_pytorch, [*TAKEN, *REFUSED]), strict=True))
    assert [text for text in TAKEN if not said[text]] == []
    # A process that may reserve nothing cannot train.
    assert [text for text in REFUSED if said[text]] == ["per_process_memory_fraction:0.0"]


@pytest.mark.parametrize("text", REFUSED)
def test_what_pytorch_refuses_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError) as refused:
        parse_alloc_conf(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_split_size_mb:-5", "whole number of MiB"),  # PyTorch would bend these numbers
        ("max_split_size_mb:200.5", "whole number of MiB"),
        ("backend:cudaMallocAsync", "backend:native"),
        ("max_splitsize_mb:128", "did you mean max_split_size_mb"),
    ],
)
def test_a_refusal_says_what_to_write(text, words):
    with pytest.raises(UsageError, match=words):
        parse_alloc_conf(text)


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
        assert settings.memory_fraction == 1.0
        return
    assert refusal
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "backend:native"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "unset it"),
    ],
)
def test_a_shell_without_the_caching_allocator_runs_no_script(variable, value, word):
    check_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    with pytest.raises(UsageError, match=word):
        check_environment({variable: value})
