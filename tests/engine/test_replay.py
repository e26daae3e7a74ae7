"""PyTorch's own allocator, replaying recordings of it: its counters are those of the recording."""

import gzip
import json
from pathlib import Path

import pytest

from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.engine import engine
from memcalc.records.levels import Levels, highest
from memcalc.records.replay import UNLIMITED, Card, Refused, Wanted

MIB, GIB = 1 << 20, 1 << 30
FOLDER = Path(__file__).parents[2] / "evidence" / "standin" / "allocator"
RECORDINGS = sorted(FOLDER.glob("*.json.gz"))
RUNGS = Levels.__struct_fields__
NEVER_FULL = Card(capacity=80 * GIB)


def replayed(calls, card=NEVER_FULL, **wanted):
    (found,) = engine.player()(calls, [card], Wanted(**wanted))
    return found


def list_calls(operations):
    """Yield a recording's operations as calls, up to the first request that failed."""
    for number, operation in enumerate(operations):
        match operation:
            case ["alloc", size, stream]:
                yield number, size, stream
            case ["free", key]:
                yield key, 0
            case ["oom", size, stream]:
                yield number, size, stream
                return
            case ["reset_peaks"]:
                yield ("mark",)
            case ["checkpoint"]:
                pass
            case _:
                yield tuple(operation)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_replay_has_the_levels_of_the_recording_at_every_checkpoint(path):
    recording = json.loads(gzip.decompress(path.read_bytes()))
    operations, memory = recording["operations"], recording["device_bytes"]
    card = Card(conf=recording["scenario"]["conf"], capacity=memory, room=memory)
    found = replayed(list(list_calls(operations)), card, levels=0)
    rows, events = iter(recording["checkpoints"]), 0
    levels = [Levels(**dict.fromkeys(RUNGS, 0)), *found.levels]
    compared, emptied = 0, False
    for operation in operations:
        if operation[0] == "oom":
            assert found.refused is not None
            assert found.retries > 0
            break
        events += operation[0] in ("alloc", "free")
        emptied = operation[0] == "empty_cache" or (emptied and operation[0] != "alloc")
        if operation[0] == "checkpoint":
            recorded = dict(zip(recording["counters"], next(rows), strict=True))
            # Levels are known after births and deaths; an empty cache waits for all streams.
            for rung in ["allocated"] if emptied else RUNGS:
                known = recorded[f"{rung}_bytes.all.current"]
                assert getattr(levels[events], rung) == known, (events, rung)
            compared += 1
    else:
        assert found.refused is None
        assert found.retries == recorded["num_alloc_retries"]
        assert [found.peaks, *found.intervals][-1] == Levels(
            **{rung: recorded[f"{rung}_bytes.all.peak"] for rung in RUNGS}
        )
    assert compared > 3


def test_peaks_are_those_of_the_intervals_and_of_what_came_before():
    calls = [(0, 30 * MIB), (0, 0), ("mark",), (1, 20 * MIB), ("mark",), (2, 5 * MIB)]
    found = replayed(calls)
    assert [one.requested for one in found.intervals] == [20 * MIB, 25 * MIB]
    assert found.peaks.requested == 30 * MIB
    assert found.peaks.reserved == highest(*found.intervals).reserved == found.end.reserved
    assert found.end.requested == 25 * MIB


def test_each_card_and_each_setting_has_an_allocator_of_its_own():
    calls = [(0, 300 * MIB), (0, 0), (1, 320 * MIB), (1, 0)]
    cards = [
        NEVER_FULL,
        Card(capacity=500 * MIB, room=400 * MIB),
        Card(capacity=500 * MIB, room=310 * MIB),
        Card(conf="per_process_memory_fraction:0.5", capacity=700 * MIB),
    ]
    roomy, tight, full, half = engine.player()(calls, cards, Wanted())
    assert (roomy.peaks.reserved, roomy.retries) == (620 * MIB, 0)
    assert (tight.peaks.reserved, tight.retries) == (320 * MIB, 1)
    assert full.refused == Refused(asked=320 * MIB, free=310 * MIB)
    assert full.peaks.requested == 300 * MIB
    assert (half.peaks.reserved, half.retries) == (320 * MIB, 1)
    assert half.refused is None


def test_memory_that_another_stream_uses_is_free_by_the_next_birth_or_once_that_stream_has_passed():
    freed = [(0, 40 * MIB), ("used_by", 0, 1), (0, 0)]
    at_once = replayed([*freed, (1, 40 * MIB)])
    assert at_once.peaks.reserved == 40 * MIB
    behind = replayed([*freed, (1, 40 * MIB), ("passed", 0), (2, 40 * MIB)], levels=0)
    assert behind.peaks.reserved == 80 * MIB
    assert [one.active // MIB for one in behind.levels] == [40, 40, 80, 80]
    assert [one.allocated // MIB for one in behind.levels] == [40, 0, 40, 80]


def test_a_stream_that_is_behind_is_waited_for_where_memory_is_full():
    calls = [(0, 40 * MIB), ("used_by", 0, 1), (0, 0), (1, 40 * MIB), ("passed", 0)]
    full = replayed(calls, Card(capacity=100 * MIB, room=60 * MIB))
    assert full.refused is None
    assert (full.peaks.reserved, full.retries) == (40 * MIB, 1)


def test_no_block_passes_from_one_stream_to_another():
    found = replayed([(0, 30 * MIB), (0, 0), (1, 30 * MIB, 1), (1, 0), (2, 30 * MIB, 2)])
    assert found.peaks.reserved == 90 * MIB
    assert replayed([(0, 30 * MIB), (0, 0), ("empty_cache",)]).end.reserved == 0


def in_a_private_pool():
    """A program with a memory pool of its own, in this fork: the levels of PyTorch's counters."""
    import torch

    from memcalc.engine import simulated_gpu
    from memcalc.engine import torch_internals as internals

    simulated_gpu.resize(80 * GIB, UNLIMITED)
    internals.allow_cuda_after_fork()
    found, side, pool = [], torch.cuda.Stream(), torch.cuda.MemPool()

    def hold(size):
        found.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        levels.append([getattr(internals.levels(), rung) for rung in RUNGS])

    levels = []
    hold(30 * MIB)
    with torch.cuda.stream(side), torch.cuda.use_mem_pool(pool):
        hold(25 * MIB)
        hold(3 * MIB)
    found[:2] = []
    torch.cuda.empty_cache()
    hold(25 * MIB)
    with torch.cuda.stream(side), torch.cuda.use_mem_pool(pool):
        hold(24 * MIB)
    return levels


def test_segments_of_a_private_pool_are_kept_for_it_as_pytorch_keeps_them(forked):
    calls = [
        (0, 30 * MIB),
        ("keep_pool", 1),
        (1, 25 * MIB, 1),
        (2, 3 * MIB, 1),
        (0, 0),
        (1, 0),
        ("empty_cache",),
        (3, 25 * MIB),
        (4, 24 * MIB, 1),
    ]
    births = [0, 1, 2, 5, 6]
    levels = replayed(calls, levels=0).levels
    own = [[getattr(levels[at], rung) for rung in RUNGS] for at in births]
    assert own == forked(in_a_private_pool)
    assert own[-1][3] == (26 + 20 + 26) * MIB


def test_calls_that_contradict_themselves_are_refused():
    with pytest.raises(UsageError, match="born twice"):
        replayed([(0, 5), (0, 5)])
    with pytest.raises(UsageError, match="not alive"):
        replayed([(0, 0)])


def test_settings_that_pytorch_refuses_are_an_error_in_one_sentence():
    with pytest.raises(EstimateError, match="max_split_size_mb") as refused:
        replayed([(0, 5)], Card(conf="max_split_size_mb:3", capacity=GIB))
    assert "\n" not in str(refused.value)


def test_the_recordings_cover_every_rule_of_the_allocator():
    assert len(RECORDINGS) >= 10
    seen: dict[str, int] = {}
    for path in RECORDINGS:
        recording = json.loads(gzip.decompress(path.read_bytes()))
        last = dict(zip(recording["counters"], recording["checkpoints"][-1], strict=True))
        for name in ("num_alloc_retries", "num_ooms", "oversize_segments.allocated"):
            seen[name] = seen.get(name, 0) + last[name]
        for name, *_ in recording["operations"]:
            seen[name] = seen.get(name, 0) + 1
    assert not {name for name, count in seen.items() if count < 20}
    assert {"oom", "empty_cache", "used_by"} <= set(seen)
