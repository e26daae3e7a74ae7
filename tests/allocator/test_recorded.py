"""Recordings of PyTorch's real allocator, replayed: every rung, block and segment is equal."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from memcalc.allocator.caching import CachingAllocator, DeviceOutOfMemoryError
from memcalc.allocator.segments import segments
from memcalc.allocator.settings import parse_alloc_conf
from memcalc.allocator.state import Block, DeviceMemory

FOLDER = Path(__file__).parents[2] / "evidence" / "standin" / "allocator"
RECORDINGS = sorted(FOLDER.glob("*.json.gz"))

RUNGS = ("requested", "allocated", "active", "reserved")


def load(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


class Player:
    """Runs the operations of a recording through the model."""

    def __init__(self, recording: dict[str, Any]) -> None:
        scenario = recording["scenario"]
        major, minor = recording["torch"].split(".")[:2]
        self.settings = parse_alloc_conf(scenario["conf"], torch=(int(major), int(minor)))
        self.first = min(entry[1] for entry in recording["history"] if entry[0] != "oom")
        device = DeviceMemory(recording["device_bytes"])
        device.next_address = self.first
        self.allocator = CachingAllocator(self.settings, device)
        self.live: dict[int, Block] = {}

    def do(self, number: int, operation: list[Any]) -> None:
        match operation:
            case ["alloc", size, stream]:
                self.live[number] = self.allocator.allocate(size, stream)
            case ["oom", size, stream]:
                with pytest.raises(DeviceOutOfMemoryError):
                    self.allocator.allocate(size, stream)
            case ["free", key]:
                self.allocator.free(self.live.pop(key))
            case ["used_by", key, stream]:
                self.allocator.record_stream(self.live[key], stream)
            case ["empty_cache"]:
                self.allocator.empty_cache()
            case ["reset_peaks"]:
                self.allocator.stats.reset_peaks()

    def digest(self) -> str:
        listed = [
            (
                segment.address,
                segment.stream,
                segment.segment_type,
                segment.is_expandable,
                [
                    (block.address, block.size, block.requested_size, block.state)
                    for block in segment.blocks
                ],
            )
            for segment in segments(self.allocator)
        ]
        return hashlib.sha256(repr(listed).encode()).hexdigest()[:16]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_rung_segment_and_block_equals_the_recording_at_every_checkpoint(path):
    recording = load(path)
    player = Player(recording)
    rows, digests = iter(recording["checkpoints"]), iter(recording["digests"])
    for number, operation in enumerate(recording["operations"]):
        if operation[0] != "checkpoint":
            player.do(number, operation)
            continue
        recorded = dict(zip(recording["counters"], next(rows), strict=True))
        held, peaks = player.allocator.levels(), player.allocator.stats.peaks()
        for rung in RUNGS:
            known = getattr(held, rung), getattr(peaks, rung)
            name = f"{rung}_bytes.all"
            assert known == (recorded[f"{name}.current"], recorded[f"{name}.peak"]), (number, rung)
        assert player.allocator.retries == recorded["num_alloc_retries"]
        assert player.digest() == next(digests), number
    assert next(rows, None) is None


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_segments_are_taken_and_given_back_as_recorded(path):
    recording = load(path)
    player = Player(recording)
    for number, operation in enumerate(recording["operations"]):
        player.do(number, operation)
    trace = [list(entry) for entry in player.allocator.trace if entry[0] != "free_completed"]
    assert trace == recording["history"]


def test_the_recordings_cover_every_rule_of_the_allocator():
    assert len(RECORDINGS) >= 34
    seen: dict[str, int] = {}
    for path in RECORDINGS:
        recording = load(path)
        last = dict(zip(recording["counters"], recording["checkpoints"][-1], strict=True))
        for name in ("num_alloc_retries", "num_ooms", "oversize_segments.allocated"):
            seen[name] = seen.get(name, 0) + last[name]
        for name, *_ in recording["operations"] + recording["history"]:
            seen[name] = seen.get(name, 0) + 1
    assert not {name for name, count in seen.items() if count < 20}
    assert {"segment_map", "segment_unmap", "segment_alloc", "segment_free", "used_by"} <= set(seen)
