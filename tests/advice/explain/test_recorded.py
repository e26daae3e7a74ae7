"""Snapshots of the real allocator, shown and asked what if."""

import gzip
import json
import pickle
from pathlib import Path

import pytest

from memcalc.advice.explain.recorded import history, read
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.engine import engine
from memcalc.files.artifact import decode
from memcalc.files.snapshot_reader import Snapshot
from memcalc.records.levels import Levels
from memcalc.records.replay import Card, Wanted
from memcalc.report import saved
from memcalc.report.blocks import markdown, terminal
from memcalc.units import MIB

FOLDER = Path(__file__).parents[3] / "evidence" / "standin" / "allocator" / "snapshots"


RUNGS = Levels.__struct_fields__


@pytest.fixture
def snapshot(tmp_path):
    def unpack(name):
        whole = pickle.loads(gzip.decompress((FOLDER / f"{name}.pickle.gz").read_bytes()))
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(pickle.dumps(whole["snapshot"]))
        return path, whole

    return unpack


@pytest.mark.parametrize("name", ["training-expandable-torch2.13", "random-max-split-torch2.13"])
def test_a_real_run_is_replayed_and_its_peaks_are_those_measured(snapshot, name):
    path, whole = snapshot(name)
    found = read(path, engine.player())
    assert found.conf == whole["conf"]
    assert found.not_replayed is None
    for at, rung in enumerate(Levels.__struct_fields__):
        assert getattr(found.replayed, rung) >= max(row[at + 1] for row in whole["levels"])
        assert getattr(found.replayed, rung) >= getattr(found.held.levels, rung)
    assert found.what_ifs[0].conf == found.conf
    assert len(found.what_ifs) == 3 - (found.conf == "max_split_size_mb:128")


# Memory was given back by calls of empty_cache alone: what collects garbage is not a call.
WHOLE = sorted(
    path
    for kind in ("training", "random")
    for path in FOLDER.glob(f"{kind}-*.gz")
    if "collect" not in path.name
)


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name.removesuffix(".pickle.gz"))
def test_a_replay_has_the_levels_of_the_real_run_after_every_operation(path):
    whole = pickle.loads(gzip.decompress(path.read_bytes()))
    calls, _ = history(decode(Snapshot, whole["snapshot"]))
    actions = [entry["action"] for entry in whole["snapshot"]["device_traces"][0]]
    card = Card(conf=whole["conf"], capacity=80 << 30)
    (replay,) = engine.player()(calls, [card], Wanted(levels=0))
    assert len(whole["levels"]) >= 13
    for entries, *measured in whole["levels"]:
        done = [one for one in actions[:entries] if one in ("alloc", "free_requested")]
        found = replay.levels[len(done) - 1]
        # An empty cache, or a stream that has passed, shows from the next birth or death on.
        rungs = RUNGS[:2] if "free_completed" != actions[entries - 1] != "alloc" else RUNGS
        for rung, level in zip(rungs, measured, strict=False):
            assert getattr(found, rung) == level, (entries, rung)


def test_without_a_pytorch_that_can_replay_a_snapshot_still_shows_what_it_holds(snapshot):
    def nobody(calls, cards, wanted):
        raise EstimateError("There is no PyTorch in python: type pip install torch.")

    path, _ = snapshot("training-torch2.13")
    found = read(path, nobody)
    assert found.held == read(path, engine.player()).held
    assert (found.replayed, found.what_ifs) == (None, ())
    text = terminal(saved.snapshot_blocks(found, 3))
    assert "not replayed: There is no PyTorch in python: type pip install torch" in text
    assert "PYTORCH_ALLOC_CONF " not in text


def test_a_replay_that_parts_from_the_recording_says_where(snapshot):
    path, whole = snapshot("training-torch2.13")
    entries = whole["snapshot"]["device_traces"][0]
    next(one for one in entries if one["action"] == "segment_alloc")["size"] += 2 * MIB
    path.write_bytes(pickle.dumps(whole["snapshot"]))
    found = read(path, engine.player())
    assert found.replayed is None
    assert found.not_replayed.startswith("most reserved: ")


def test_settings_of_your_own_can_be_asked_about(snapshot):
    path, _ = snapshot("training-torch2.13")
    plain, asked = read(path, engine.player(), ["expandable_segments:True"]).what_ifs
    assert asked.peaks.requested == plain.peaks.requested
    assert asked.peaks.reserved < plain.peaks.reserved
    small = read(path, engine.player(), memory=plain.peaks.reserved // 2)
    assert "asked for" in small.what_ifs[0].out_of_memory
    assert "out of memory" in terminal(saved.snapshot_blocks(small, 3))


def test_a_history_that_starts_in_the_middle_says_so(snapshot):
    path, _ = snapshot("middle-torch2.13")
    found = read(path, engine.player())
    assert found.replayed is None
    assert found.older > 0
    text = terminal(saved.snapshot_blocks(found, 3))
    assert "starts in the middle" in text
    assert "older than the recording" in text


def test_all_formats_say_the_same(snapshot):
    found = read(snapshot("training-torch2.13")[0], engine.player())
    body = json.loads(saved.as_json(found))
    assert body["what_ifs"][0]["peaks"]["reserved"] == found.what_ifs[0].peaks.reserved
    pools = body["held"]["reserved_by_pool"]
    assert sum(pool["bytes"] for pool in pools) == found.held.levels.reserved
    reserved = found.what_ifs[1].peaks.reserved
    assert f"| {reserved / MIB:,.1f} |" in markdown(saved.snapshot_blocks(found, 3))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"device": 3}, "no device 3"), ({"confs": ["max_split:3"]}, "did you mean max_split_size")],
)
def test_a_question_that_makes_no_sense_is_refused(snapshot, arguments, words):
    with pytest.raises(UsageError, match=words):
        read(snapshot("training-torch2.13")[0], engine.player(), **arguments)
