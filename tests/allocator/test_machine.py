"""Random lives of storages: what must hold after every step, and a naive allocator beside it."""

import math
from itertools import pairwise

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError
from memcalc.allocator.segments import BlockState, segments
from memcalc.allocator.settings import UNLIMITED, AllocatorSettings
from memcalc.allocator.state import FIRST_ADDRESS, DeviceMemory

from .naive import MIB, NaiveAllocator

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(4096, 2 * MIB),
    st.integers(MIB - 2, 12 * MIB),
    st.integers(9 * MIB, 90 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB, 32 * MIB]),
)


class Lives(RuleBasedStateMachine):
    """Storages are born, shared and freed under any settings."""

    settings_drawn = st.builds(
        AllocatorSettings,
        max_split=st.sampled_from([UNLIMITED, 20 * MIB, 32 * MIB]),
        divisions=st.sampled_from([(0,) * 16, (4,) * 16, (8, 2) * 8]),
        large_segment=st.sampled_from([20 * MIB, 12 * MIB]),
        expandable=st.booleans(),
        gc_threshold=st.sampled_from([0.0, 0.5]),
        memory_fraction=st.sampled_from([1.0, 0.75]),
    )

    @initialize(settings=settings_drawn, total=st.sampled_from([256 * MIB, 1024 * MIB]))
    def begin(self, settings, total):
        self.allocator = CachingAllocator(settings, DeviceMemory(total))
        self.live = []

    @rule(size=SIZES, stream=st.integers(0, 2))
    def allocate(self, size, stream):
        try:
            self.live.append(self.allocator.allocate(size, stream))
        except DeviceOutOfMemoryError as error:
            failure = error.why
        else:
            return
        assert failure.requested == size
        assert failure.reserved == self.allocator.levels().reserved

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        self.allocator.free(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stream=st.integers(0, 2))
    def share(self, data, stream):
        self.allocator.record_stream(data.draw(st.sampled_from(self.live)), stream)

    @rule()
    def empty_cache(self):
        self.allocator.empty_cache()

    @invariant()
    def blocks_tile_their_segment_and_no_two_free_neighbours_remain(self):
        for segment in segments(self.allocator):
            at = segment.address
            states = [block.state for block in segment.blocks]
            for block in segment.blocks:
                assert block.address == at
                assert block.size > 0
                assert block.size % 512 == 0
                at += block.size
            assert not [pair for pair in pairwise(states) if set(pair) == {"inactive"}]

    @invariant()
    def the_ladder_holds(self):
        for rungs in (self.allocator.levels(), self.allocator.stats.peaks()):
            assert 0 <= rungs.requested <= rungs.active <= rungs.reserved
            assert rungs.allocated <= rungs.active
        if not self.allocator.waiting:
            assert rungs.requested <= rungs.allocated

    @invariant()
    def the_totals_are_what_the_segments_say(self):
        held = segments(self.allocator)
        levels = self.allocator.levels()
        assert levels.reserved == sum(segment.total_size for segment in held)
        assert levels.allocated == sum(segment.allocated_size for segment in held)
        assert levels.active == sum(segment.active_size for segment in held)
        assert self.allocator.device.used == levels.reserved

    @invariant()
    def limits_are_kept(self):
        reserved = self.allocator.levels().reserved
        assert reserved <= self.allocator.device.available
        if self.allocator.allowed is not None and not self.allocator.settings.expandable:
            assert reserved <= self.allocator.allowed

    def teardown(self):
        for block in getattr(self, "live", []):
            self.allocator.free(block)
        if hasattr(self, "allocator"):
            self.allocator.empty_cache()
            levels = self.allocator.levels()
            assert (levels.requested, levels.active, levels.reserved) == (0, 0, 0)
            assert self.allocator.device.used == 0
            assert segments(self.allocator) == []


class BesideNaive(RuleBasedStateMachine):
    """The fast allocator and the naive one are asked the same and answer the same."""

    @initialize(
        max_split=st.sampled_from([UNLIMITED, 20 * MIB, 40 * MIB]),
        steps=st.sampled_from([0, 2, 8]),
        total=st.sampled_from([200 * MIB, 2048 * MIB]),
    )
    def begin(self, max_split, steps, total):
        settings = AllocatorSettings(max_split=max_split, divisions=(steps,) * 16)
        self.fast = CachingAllocator(settings, DeviceMemory(total))
        self.naive = NaiveAllocator(
            total=total,
            first_address=FIRST_ADDRESS,
            max_split=math.inf if max_split == UNLIMITED else max_split,
            steps=steps,
        )
        self.live, self.count = {}, 0

    @rule(size=SIZES, stream=st.integers(0, 1))
    def allocate(self, size, stream):
        self.count += 1
        expected = self.naive.allocate(self.count, size, stream)
        try:
            block = self.fast.allocate(size, stream)
        except DeviceOutOfMemoryError:
            assert expected is None
        else:
            assert block.address == expected
            self.live[self.count] = block

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        key = data.draw(st.sampled_from(sorted(self.live)))
        self.fast.free(self.live.pop(key))
        self.naive.free(key)

    @rule()
    def empty_cache(self):
        self.fast.empty_cache()
        self.naive.empty_cache()

    @invariant()
    def both_hold_the_same(self):
        levels = self.fast.levels()
        assert levels.requested == self.naive.requested()
        assert levels.allocated == self.naive.allocated()
        assert levels.reserved == self.naive.reserved()
        assert self.fast.retries == self.naive.retries
        assert [
            [
                (block.address, block.size, block.state == BlockState.ALLOCATED)
                for block in seg.blocks
            ]
            for seg in segments(self.fast)
        ] == [
            [(piece.address, piece.size, piece.key is not None) for piece in seg.pieces]
            for seg in sorted(self.naive.segments, key=lambda seg: seg.pieces[0].address)
        ]


TestLives = Lives.TestCase
TestBesideNaive = BesideNaive.TestCase
TestLives.settings = TestBesideNaive.settings = hypothesis_settings(stateful_step_count=80)
