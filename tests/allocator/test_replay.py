"""Events in, levels and peaks out: the one-pass replay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.allocator.caching import CachingAllocator
from memcalc.allocator.levels import Levels
from memcalc.allocator.replay import Op, replay
from memcalc.allocator.settings import AllocatorSettings, parse_alloc_conf
from memcalc.allocator.state import DeviceMemory

MIB, GIB = 1 << 20, 1 << 30
PLAIN = AllocatorSettings()


def levels(requested: int, allocated: int, active: int, reserved: int) -> Levels:
    return Levels(requested=requested, allocated=allocated, active=active, reserved=reserved)


def test_a_few_storages_worked_out_by_hand():
    result = replay(
        [
            ("weights", 100),
            (Op.MARK, "forward"),
            ("activation", 3 * MIB + 1),
            ("temporary", 30 * MIB),
            ("temporary", 0),
            (Op.MARK, "backward"),
            ("activation", None),
        ],
        PLAIN,
        80 * GIB,
    )
    small, activation = 512, 3 * MIB + 512
    full = levels(100 + 33 * MIB + 1, small + activation + 30 * MIB, 0, 52 * MIB)
    full = levels(full.requested, full.allocated, full.allocated, full.reserved)
    kept = small + activation
    between = levels(100 + 3 * MIB + 1, kept, kept, 52 * MIB)
    forward, backward = result.intervals
    assert (forward.name, forward.peaks) == ("forward", full)
    assert (backward.name, backward.peaks) == ("backward", between)
    assert result.end == levels(100, small, small, 52 * MIB)
    assert result.peaks == full
    assert (result.retries, result.out_of_memory) == (0, None)


def test_running_out_of_memory_ends_the_replay_and_says_where():
    events = [
        ("a", 60 * MIB),
        (Op.MARK, "backward"),
        ("b", 30 * MIB),
        ("b", 0),
        ("c", 50 * MIB),
        ("a", 0),
    ]
    result = replay(events, PLAIN, 100 * MIB)
    failure = result.out_of_memory
    assert failure is not None
    assert (failure.asked, failure.device_free) == (50 * MIB, 40 * MIB)
    assert result.retries == 1
    assert result.peaks.reserved == 90 * MIB
    assert result.end.reserved == 60 * MIB


def test_what_others_use_of_the_device_is_not_available():
    events = [("a", 60 * MIB)]
    assert replay(events, PLAIN, 100 * MIB).out_of_memory is None
    assert replay(events, PLAIN, 100 * MIB, available=50 * MIB).out_of_memory is not None


def test_streams_shared_storages_and_an_emptied_cache():
    result = replay(
        [
            ("a", 30 * MIB),
            (Op.USED_BY, "a", 5),
            ("b", 30 * MIB, 5),
            ("a", 0),
            (Op.MARK, "shared"),
            ("b", 0),
            (Op.EMPTY_CACHE, None),
        ],
        PLAIN,
        GIB,
    )
    assert result.peaks.reserved == 60 * MIB
    (interval,) = result.intervals
    assert (interval.peaks.allocated, interval.peaks.active) == (30 * MIB, 60 * MIB)
    assert result.end == levels(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("events", "message"),
    [([("a", 1), ("a", 1)], "born twice"), ([("a", 0)], "not alive")],
)
def test_events_that_contradict_themselves_are_refused(events, message):
    with pytest.raises(ValueError, match=message):
        replay(events, PLAIN, GIB)


@given(
    st.lists(
        st.one_of(
            st.integers(1, 40 * MIB),
            st.just("free"),
            st.sampled_from(["forward", "backward"]).map(lambda name: (Op.MARK, name)),
        ),
        max_size=60,
    ),
    st.sampled_from(["", "expandable_segments:True", "roundup_power2_divisions:4"]),
)
def test_spans_are_what_the_allocator_shows_when_asked_after_every_event(script, conf):
    settings = parse_alloc_conf(conf)
    events: list[tuple[object, object]] = []
    alive: list[int] = []
    for key, what in enumerate(script):
        if isinstance(what, int):
            events.append((key, what))
            alive.append(key)
        elif isinstance(what, tuple):
            events.append(what)
        elif alive:
            events.append((alive.pop(key % len(alive)), 0))
    result = replay(events, settings, 64 * GIB)

    slow = CachingAllocator(settings, DeviceMemory(64 * GIB))
    live, intervals, seen = {}, [], [slow.levels()]
    for key, size in events:
        if key is Op.MARK:
            intervals.append((size, seen := [slow.levels()]))
        elif size:
            live[key] = slow.allocate(size)
        else:
            slow.free(live.pop(key))
        seen.append(slow.levels())
    assert [interval.name for interval in result.intervals] == [name for name, _ in intervals]
    for interval, (_, shown) in zip(result.intervals, intervals, strict=True):
        for rung in Levels.__struct_fields__:
            assert getattr(interval.peaks, rung) == max(getattr(level, rung) for level in shown)
    assert result.end == slow.levels()
