"""Single rules of the caching allocator, each with figures worked out by hand or measured."""

import pytest

from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError
from memcalc.allocator.segments import BlockState, segments
from memcalc.allocator.settings import parse_alloc_conf
from memcalc.allocator.state import DeviceMemory

MIB, GIB = 1 << 20, 1 << 30


def allocator(conf: str = "", total: int = 80 * GIB, **options: bool) -> CachingAllocator:
    return CachingAllocator(parse_alloc_conf(conf), DeviceMemory(total), **options)


# allocated and reserved (MiB) after one request of n MiB and one byte on an empty allocator, read
# from memory_stats of torch 2.11.0 and 2.13.0 on a stand-in driver; allocated is rounded to 512.
MEASURED = {
    "": {1: 20, 3: 20, 9: 20, 40: 42, 70: 72, 140: 142, 300: 302, 3000: 3002},
    "large_segment_size_mb:15": {1: 15, 3: 15, 9: 15, 40: 42, 70: 72},
    "large_segment_size_mb:64": {1: 64, 3: 64, 9: 64, 40: 42, 70: 72},
    "expandable_segments:True": {1: 20, 9: 20, 40: 60, 70: 80, 140: 160, 300: 320, 3000: 3020},
    "expandable_segments:True,large_segment_size_mb:64": {1: 64, 40: 64, 70: 128, 3000: 3008},
    "expandable_segments:True,large_segment_size_mb:15": {1: 15, 40: 45, 70: 75, 3000: 3015},
}


@pytest.mark.parametrize("conf", sorted(MEASURED))
def test_the_first_request_reserves_what_pytorch_reserves(conf):
    for request, reserved in MEASURED[conf].items():
        tried = allocator(conf)
        tried.allocate(request * MIB + 1)
        levels = tried.levels()
        assert levels.requested == request * MIB + 1
        assert levels.allocated == request * MIB + 512
        assert levels.reserved == reserved * MIB, request


def test_requests_up_to_one_mib_share_two_mib_segments():
    tried = allocator()
    blocks = [tried.allocate(MIB) for _ in range(3)]
    assert [block.address - blocks[0].address for block in blocks] == [0, MIB, 2 * MIB]
    assert tried.levels().reserved == 4 * MIB


def test_a_block_with_no_more_than_a_mib_to_spare_is_handed_out_whole():
    tried = allocator()
    tried.free(tried.allocate(12 * MIB))
    block = tried.allocate(11 * MIB)
    assert block.size == 12 * MIB
    assert tried.levels().allocated == 12 * MIB
    assert tried.levels().requested == 11 * MIB
    tried.free(block)
    assert tried.allocate(11 * MIB - 512).size == 11 * MIB - 512


def test_the_smallest_block_that_fits_is_taken_and_the_lowest_among_equals():
    tried = allocator()
    first, second, large = (tried.allocate(size * MIB) for size in (30, 30, 50))
    expected = [block.address for block in (first, second, large)]
    for block in (large, second, first):
        tried.free(block)
    assert [tried.allocate(size).address for size in (30 * MIB, 29 * MIB + 1, 29 * MIB)] == expected


def test_freed_neighbours_become_one_block_again():
    tried = allocator()
    blocks = [tried.allocate(5 * MIB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[3], blocks[1]):
        tried.free(block)
    (segment,) = segments(tried)
    assert [block.size for block in segment.blocks] == [20 * MIB]


def test_a_block_of_another_stream_is_not_reused():
    tried = allocator()
    tried.free(tried.allocate(30 * MIB, 0))
    tried.allocate(30 * MIB, 7)
    assert tried.levels().reserved == 60 * MIB


def test_max_split_keeps_large_blocks_whole_for_requests_of_their_size():
    tried = allocator("max_split_size_mb:40")
    large = tried.allocate(60 * MIB)
    tried.free(large)
    small = tried.allocate(30 * MIB)  # below the limit: may not touch the oversize block
    assert small.address != large.address
    assert tried.allocate(45 * MIB).size == 60 * MIB  # within 20 MiB: handed out unsplit


def test_running_short_empties_the_cache_and_counts_a_retry():
    tried = allocator(total=100 * MIB)
    tried.free(tried.allocate(60 * MIB))
    tried.allocate(80 * MIB)
    assert tried.retries == 1
    assert [entry[0] for entry in tried.trace] == ["segment_alloc", "segment_free", "segment_alloc"]


def test_running_out_says_what_was_asked_and_what_is_free_and_the_allocator_lives_on():
    tried = allocator(total=100 * MIB)
    kept = tried.allocate(60 * MIB)
    with pytest.raises(DeviceOutOfMemoryError) as failure:
        tried.allocate(41 * MIB)
    why = failure.value.why
    assert (why.requested, why.asked) == (41 * MIB, 42 * MIB)
    assert (why.device_free, why.allowed) == (40 * MIB, None)
    assert (why.allocated, why.reserved) == (60 * MIB, 60 * MIB)
    assert tried.retries == 1
    tried.free(kept)
    assert tried.allocate(60 * MIB).address == kept.address


def test_a_memory_fraction_limits_reserved_on_a_device_with_room():
    tried = allocator("per_process_memory_fraction:0.5", total=100 * MIB)
    tried.allocate(40 * MIB)
    with pytest.raises(DeviceOutOfMemoryError) as failure:
        tried.allocate(20 * MIB)
    assert failure.value.why.allowed == 50 * MIB
    assert failure.value.why.device_free == 60 * MIB


def test_a_memory_fraction_can_be_used_to_its_last_byte():
    tried = allocator("per_process_memory_fraction:0.5", total=100 * MIB)
    tried.allocate(50 * MIB)
    assert tried.retries == 0


def test_running_short_gives_back_blocks_of_exactly_the_split_limit():
    tried = allocator("max_split_size_mb:40", total=120 * MIB)
    for block in [tried.allocate(40 * MIB) for _ in range(2)]:
        tried.free(block)
    tried.allocate(70 * MIB)  # both go before the whole cache would have to
    assert tried.retries == 0
    assert tried.levels().reserved == 70 * MIB


def test_garbage_collection_gives_back_the_segments_unused_longest():
    conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"
    tried = allocator(conf, total=400 * MIB)  # allowed: 200 MiB, collected above 100 MiB
    old, young, busy = (tried.allocate(size * MIB) for size in (16, 30, 70))
    address = old.address
    tried.free(old)
    for _ in range(3):  # three searches, served from the cache, age the free block
        tried.free(busy)
        busy = tried.allocate(70 * MIB)
    tried.free(young)
    tried.allocate(72 * MIB)  # 116 MiB reserved: the 16 MiB of age 4 are enough, age 1 stays
    assert [entry[1] for entry in tried.trace if entry[0] == "segment_free"] == [address]


def test_empty_cache_gives_back_whole_segments_only():
    tried = allocator()
    kept, dropped = tried.allocate(5 * MIB), tried.allocate(5 * MIB)
    alone = tried.allocate(30 * MIB)
    tried.free(dropped)
    tried.free(alone)
    tried.empty_cache()
    assert tried.levels().reserved == 20 * MIB
    assert kept.busy


def test_expandable_segments_give_back_pages_in_the_middle_and_map_them_again():
    tried = allocator("expandable_segments:True")
    blocks = [tried.allocate(40 * MIB) for _ in range(3)]
    assert len(segments(tried)) == 1
    address = blocks[1].address
    tried.free(blocks[1])
    tried.empty_cache()
    assert tried.levels().reserved == 80 * MIB
    assert [segment.total_size for segment in segments(tried)] == [40 * MIB, 40 * MIB]
    assert tried.allocate(30 * MIB).address == address
    assert tried.levels().reserved == 120 * MIB


def test_a_block_another_stream_used_stays_active_until_the_next_request():
    tried = allocator()
    block = tried.allocate(5 * MIB)
    address = block.address
    tried.record_stream(block, 3)
    tried.free(block)
    levels = tried.levels()
    assert (levels.requested, levels.allocated, levels.active) == (5 * MIB, 0, 5 * MIB)
    (segment,) = segments(tried)
    assert segment.blocks[0].state == BlockState.PENDING
    assert tried.allocate(5 * MIB).address == address


def test_a_block_of_a_stream_that_lags_is_reused_only_once_it_is_complete():
    tried = allocator(streams_lag=True)
    block = tried.allocate(5 * MIB)
    address = block.address
    tried.record_stream(block, 3)
    tried.record_stream(block, 4)
    tried.free(block)
    assert tried.allocate(5 * MIB).address != address
    tried.complete(block)
    assert not tried.waiting
    assert tried.allocate(5 * MIB).address == address


def test_using_a_block_on_its_own_stream_changes_nothing():
    tried = allocator()
    block = tried.allocate(512)
    tried.record_stream(block, 0)
    tried.free(block)
    assert tried.levels().active == 0


def test_active_peaks_count_what_waits():
    tried = allocator(streams_lag=True)
    block = tried.allocate(5 * MIB)
    tried.record_stream(block, 3)
    tried.free(block)
    tried.allocate(512)
    peaks = tried.stats.peaks()
    assert (peaks.active, peaks.allocated) == (5 * MIB + 512, 5 * MIB)


def test_a_private_pool_is_apart_and_kept():
    tried, pool = allocator(total=40 * MIB), 1 << 20
    tried.keep_pool(pool)
    tried.free(tried.allocate(12 * MIB, pool))
    tried.free(tried.allocate(12 * MIB))
    assert tried.levels().reserved == 24 * MIB
    tried.empty_cache()
    assert tried.levels().reserved == 12 * MIB
    with pytest.raises(DeviceOutOfMemoryError):
        tried.allocate(30 * MIB)
