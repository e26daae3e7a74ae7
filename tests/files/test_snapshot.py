"""Memory snapshots are read without running code in them, and within limits."""

import gzip
import os
import pickle
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from memcalc.errors import UsageError
from memcalc.files.artifact import decode
from memcalc.files.snapshot_reader import Snapshot, breakdown, read_snapshot

MIB = 1 << 20
FOLDER = Path(__file__).parents[2] / "evidence" / "standin" / "allocator" / "snapshots"
WHOLE = sorted(path for path in FOLDER.glob("*.gz") if not path.name.startswith("middle"))


def load(path: Path) -> dict[str, Any]:
    whole = pickle.loads(gzip.decompress(path.read_bytes()))
    return {**whole, "plain": whole["snapshot"], "snapshot": decode(Snapshot, whole["snapshot"])}


def name(path: Path) -> str:
    return path.name.removesuffix(".pickle.gz")


def test_a_site_is_the_innermost_line_of_python():
    unwound = [
        {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
        {"filename": "empty.cpp", "line": 0, "name": "at::empty"},
        {"filename": "train.py", "line": 12, "name": "step"},
        {"filename": "main.py", "line": 3, "name": "<module>"},
    ]
    blocks = [
        {"size": size, "requested_size": size - 24, "state": "active_allocated", "frames": unwound}
        for size in (1024, 2048)
    ]
    segment = {"device": 0, "address": 0, "total_size": 2 * MIB, "stream": 0, "blocks": blocks}
    whole = {"segments": [{**segment, "segment_type": "small"}], "device_traces": []}
    (site,) = breakdown(decode(Snapshot, whole)).sites
    assert (site.name, site.count, site.bytes) == ("train.py:12:step", 2, 1024 + 2048)


class Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


def test_a_file_that_wants_to_run_code_is_refused_and_runs_none(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "made"))
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": [Evil()], "device_traces": []}))
    with pytest.raises(UsageError, match=r"wants to load \w+\.mkdir") as refusal:
        read_snapshot(path)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "made").exists()


BOMBS = {
    "a memo of two billion places, in nine bytes": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "the same in text": b"Np2147483647\n.",
    "a byte array of an exabyte": b"\x80\x05\x96" + (1 << 60).to_bytes(8, "little") + b".",
    "text of an exabyte": b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b".",
    "a frame of an exabyte": b"\x80\x04\x95" + (1 << 60).to_bytes(8, "little") + b"N.",
    "an integer of a gigabyte": b"\x8b" + (1 << 30).to_bytes(4, "little") + b".",
    "lists in lists": b"]" * 200_000 + b"a" * 199_999 + b".",
    "one list in a thousand places": pickle.dumps(
        {
            "segments": [
                {
                    **dict.fromkeys(("device", "address", "total_size", "stream"), 1),
                    "segment_type": "small",
                    "blocks": [{"size": 1, "requested_size": 1, "state": "inactive"}] * 3000,
                }
            ]
            * 3000,
            "device_traces": [[{"action": "alloc"}] * 3000] * 3000,
        }
    ),
}


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_no_snapshot_takes_more_memory_or_time_than_its_size_deserves(tmp_path, content):
    path = tmp_path / "bomb.pickle"
    path.write_bytes(content)
    before = resource.getrlimit(resource.RLIMIT_AS)
    took, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="is not a memory snapshot"):
        read_snapshot(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 400 << 10
    assert time.monotonic() - took < 20
    assert resource.getrlimit(resource.RLIMIT_AS) == before


WRONG = {
    "a text where a size belongs": ("segments", 0, "total_size", "many"),
    "a negative size": ("segments", 0, "blocks", 0, "size", -1),
    "a size no machine has": ("device_traces", 0, 0, "size", 1 << 60),
    "an address of a thousand digits": ("segments", 0, "address", 10**1000),
    "settings that are no settings": ("allocator_settings", ["x"]),
    "an action that is no text": ("device_traces", 0, 0, "action", 3),
    "a trace that is no list": ("device_traces", 0, "x"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_snapshot_with_one_wrong_value_is_refused_with_its_place(tmp_path, change):
    *way, last, value = change
    whole = load(WHOLE[0])["plain"]
    place = whole
    for step in way:
        place = place[step]
    place[last] = value
    path = tmp_path / "wrong.pickle"
    path.write_bytes(pickle.dumps(whole))
    with pytest.raises(UsageError, match=rf"is not a memory snapshot \(.*{change[0]}"):
        read_snapshot(path)


def test_frames_of_any_kind_are_no_reason_to_refuse_a_snapshot(tmp_path):
    whole = load(WHOLE[0])["plain"]
    for number, odd in enumerate((3, None, [None], [{"filename": 3}], "x", [{"filename": "a.py"}])):
        for segment in whole["segments"][number::6]:
            for block in segment["blocks"]:
                block["frames"] = odd
    path = tmp_path / "odd.pickle"
    path.write_bytes(pickle.dumps(whole))
    assert {site.name for site in breakdown(read_snapshot(path)).sites} == {"(no frames recorded)"}
