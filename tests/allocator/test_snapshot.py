"""Memory snapshots: real ones replayed, predicted ones opened by PyTorch's own viewer."""

import copy
import gzip
import os
import pickle
import pickletools
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.allocator.levels import Levels
from memcalc.allocator.replay import Op, replay
from memcalc.allocator.settings import AllocatorSettings, parse_alloc_conf
from memcalc.allocator.snapshot_reader import breakdown, read_snapshot, snapshot_of
from memcalc.allocator.snapshot_writer import predicted_snapshot, save_snapshot
from memcalc.allocator.what_if import HistoryError, follow, history, what_if
from memcalc.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30
FOLDER = Path(__file__).parents[2] / "evidence" / "standin" / "allocator" / "snapshots"
WHOLE = sorted(path for path in FOLDER.glob("*.gz") if not path.name.startswith("middle"))
MIDDLE = sorted(FOLDER.glob("middle*.gz"))


def load(path: Path) -> dict[str, Any]:
    whole = pickle.loads(gzip.decompress(path.read_bytes()))
    return {**whole, "plain": whole["snapshot"], "snapshot": snapshot_of(whole["snapshot"])}


def name(path: Path) -> str:
    return path.name.removesuffix(".pickle.gz")


def rungs(levels: Levels) -> tuple[int, ...]:
    return levels.requested, levels.allocated, levels.active, levels.reserved


@pytest.mark.parametrize("path", WHOLE, ids=name)
def test_a_real_history_replays_to_the_byte_after_every_operation(path):
    recorded = load(path)
    levels = list(follow(recorded["snapshot"], parse_alloc_conf(recorded["conf"])))
    assert len(recorded["levels"]) >= 13
    for entries, *measured in recorded["levels"]:
        assert rungs(levels[entries - 1]) == tuple(measured), entries
    assert levels[-1] == breakdown(recorded["snapshot"]).levels


@pytest.mark.parametrize("path", MIDDLE, ids=name)
def test_a_history_that_starts_in_the_middle_says_so(path):
    recorded = load(path)
    with pytest.raises(HistoryError, match="starts in the middle"):
        list(follow(recorded["snapshot"], AllocatorSettings()))
    assert history(recorded["snapshot"]).older > 0
    end = what_if(recorded["snapshot"], AllocatorSettings(), 80 * GIB).end
    assert end.requested == breakdown(recorded["snapshot"]).levels.requested


@pytest.mark.parametrize("path", WHOLE, ids=name)
def test_following_under_settings_that_were_not_those_of_the_run_is_noticed(path):
    recorded = load(path)
    other = "" if "expandable" in recorded["conf"] else "expandable_segments:True"
    with pytest.raises(HistoryError):
        list(follow(recorded["snapshot"], parse_alloc_conf(other)))


def test_one_wrong_address_is_noticed():
    whole = load(WHOLE[0])["plain"]
    entries = [entry for entry in whole["device_traces"][0] if entry["action"] == "alloc"]
    entries[len(entries) // 2]["addr"] += 512
    snapshot = snapshot_of(whole)
    with pytest.raises(HistoryError, match="hands out"):
        list(follow(snapshot, parse_alloc_conf(load(WHOLE[0])["conf"])))


# Where memory was given back by calls of empty_cache only, a replay needs no recorded addresses.
EXACT = [path for path in WHOLE if name(path).split("-torch")[0] in {"training", "random"}]


@pytest.mark.parametrize("path", EXACT, ids=name)
def test_the_question_under_the_runs_own_settings_is_answered_with_what_happened(path):
    recorded = load(path)
    result = what_if(recorded["snapshot"], parse_alloc_conf(recorded["conf"]), 80 * GIB)
    assert result.end == breakdown(recorded["snapshot"]).levels
    for at, peak in enumerate(rungs(result.peaks)):
        assert peak >= max(row[at + 1] for row in recorded["levels"])


def test_expandable_segments_would_have_reserved_less_for_the_training_run():
    recorded = load(next(path for path in EXACT if name(path).startswith("training")))
    plain = what_if(recorded["snapshot"], AllocatorSettings(), 80 * GIB)
    expandable = what_if(recorded["snapshot"], AllocatorSettings(expandable=True), 80 * GIB)
    assert expandable.peaks.requested == plain.peaks.requested
    assert expandable.peaks.reserved < plain.peaks.reserved


def test_a_smaller_device_would_have_failed_where_it_says():
    recorded = load(EXACT[0])
    peak = what_if(recorded["snapshot"], AllocatorSettings(), 80 * GIB).peaks.reserved
    failure = what_if(recorded["snapshot"], AllocatorSettings(), peak // 2).out_of_memory
    assert failure is not None
    assert failure.asked > failure.device_free


def test_a_site_is_the_innermost_line_of_python():
    unwound = [
        {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
        {"filename": "empty.cpp", "line": 0, "name": "at::empty"},
        {"filename": "train.py", "line": 12, "name": "step"},
        {"filename": "main.py", "line": 3, "name": "<module>"},
    ]
    snapshot = predicted_snapshot([("a", 1000), ("b", 2000)], AllocatorSettings(), GIB)
    for block in snapshot["segments"][0]["blocks"]:
        block["frames"] = unwound
    (site,) = breakdown(snapshot_of(snapshot)).sites
    assert (site.name, site.count, site.bytes) == ("train.py:12:step", 2, 1024 + 2048)


EVENTS = [
    (Op.MARK, "forward"),
    ("weight", 3 * MIB),
    ("activation", 30 * MIB),
    (Op.USED_BY, "activation", 7),
    ("side", 5 * MIB, 7),
    (Op.MARK, "backward"),
    ("activation", 0),
    ("gradient", 3 * MIB),
    (Op.PASSED, "activation"),
    ("side", 0),
    (Op.EMPTY_CACHE, None),
    ("small", 100),
]


def frames(key: object) -> tuple[tuple[str, int, str], ...]:
    return ((f"model.{key}", 0, "aten::mm"), ("train", 0, "step"))


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_predicted_snapshot_shows_what_the_replay_says(conf, tmp_path):
    settings = parse_alloc_conf(conf)
    made = predicted_snapshot(EVENTS, settings, 80 * GIB, frames=frames)
    save_snapshot(made, tmp_path / "predicted.pickle")
    opened = read_snapshot(tmp_path / "predicted.pickle")
    assert opened == snapshot_of(made)
    result = replay(EVENTS, settings, 80 * GIB)
    shown = breakdown(opened)
    assert shown.levels == result.end
    assert {site.name for site in shown.sites} == {
        f"model.{key}:0:aten::mm" for key in ("weight", "gradient", "small")
    }
    levels = list(follow(opened, settings))
    assert max(level.reserved for level in levels) == result.peaks.reserved
    assert max(level.allocated for level in levels) == result.peaks.allocated


def test_a_predicted_snapshot_has_the_keys_of_a_real_one():
    real = load(next(path for path in WHOLE if name(path) == "training-torch2.13"))["plain"]
    made = predicted_snapshot(EVENTS, AllocatorSettings(), 80 * GIB, frames=frames)
    assert made.keys() == real.keys()
    assert made["segments"][0].keys() == real["segments"][0].keys()
    assert made["segments"][0]["blocks"][0].keys() == real["segments"][0]["blocks"][0].keys()
    entry, recorded = made["device_traces"][0][0], real["device_traces"][0][0]
    assert entry.keys() - {"frames"} == recorded.keys() - {"frames"}
    assert made["allocator_settings"].items() <= real["allocator_settings"].items()


def test_a_snapshot_of_a_run_that_fails_ends_with_the_failure():
    made = predicted_snapshot([("a", 60 * MIB), ("b", 50 * MIB)], AllocatorSettings(), 100 * MIB)
    last = made["device_traces"][0][-1]
    assert (last["action"], last["size"], last["device_free"]) == ("oom", 50 * MIB, 40 * MIB)


def test_pytorchs_own_viewer_opens_a_predicted_snapshot(tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "predicted.pickle"
    save_snapshot(predicted_snapshot(EVENTS, AllocatorSettings(), 80 * GIB, frames=frames), path)
    snapshot = pickle.loads(path.read_bytes())
    assert "snapshot.pickle" in viz.trace_plot(copy.deepcopy(snapshot))
    assert "snapshot.pickle" in viz.segment_plot(copy.deepcopy(snapshot))
    assert "segment_alloc" not in viz.segsum(snapshot)
    assert viz.trace(snapshot).startswith("Device 0")


def test_a_predicted_snapshot_loads_nothing_by_name():
    made = predicted_snapshot(EVENTS, AllocatorSettings(), 80 * GIB, frames=frames)
    codes = {code.name for code, _, _ in pickletools.genops(pickle.dumps(made, protocol=4))}
    assert not codes & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "INST", "OBJ"}


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


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_snapshot(tmp_path / "nothing.pickle")


BOMBS = {
    "a memo of two billion places, in nine bytes": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "the same in text": b"Np2147483647\n.",
    "a byte array of an exabyte": b"\x80\x05\x96" + (1 << 60).to_bytes(8, "little") + b".",
    "text of an exabyte": b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b".",
    "a frame of an exabyte": b"\x80\x04\x95" + (1 << 60).to_bytes(8, "little") + b"N.",
    "an integer of a gigabyte": b"\x8b" + (1 << 30).to_bytes(4, "little") + b".",
    "lists in lists": b"]" * 200_000 + b"a" * 199_999 + b".",
    "one list in a thousand places": pickle.dumps(
        {"segments": [{"blocks": (many := [{}] * 3000)}] * 3000, "device_traces": [many] * 3000}
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


PLAIN = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["segments", "device_traces", "blocks", "size", "action"]), inner
        )
    ),
    max_leaves=8,
)


@given(st.binary(max_size=60) | PLAIN.map(pickle.dumps))
def test_whatever_is_not_a_snapshot_is_refused_in_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.pickle"
    path.write_bytes(content)
    try:
        opened = read_snapshot(path)
    except UsageError as error:
        refusal = str(error)
    else:
        assert breakdown(opened).segments == 0
        return
    assert "\n" not in refusal
