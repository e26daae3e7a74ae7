"""A run's calls, replayed under its own settings, give the counters of the run."""

import pytest
from msgspec.structs import replace

from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.estimation.question import look_up
from memcalc.estimation.replays import Replays, outcome, requested_phases, roomy_card
from memcalc.records.prediction import ALLOCATOR_RUNGS

SMALL = {"gpu": "t4", "batch": 2, "seq": 32}
DISTILBERT = {"model": "distilbert-base-cased", **SMALL}
RANKS = {"model": "gpt2", **SMALL, "devices": 4}
RUNS = {
    "expandable segments": {**DISTILBERT, "alloc_conf": "expandable_segments:True"},
    "garbage collection": {**DISTILBERT, "alloc_conf": "garbage_collection_threshold:0.5"},
    "accumulation": {**DISTILBERT, "grad_accum": 3, "checkpointing": True},
    "streams of FSDP1, which use each other's memory": {**RANKS, "parallel": "fsdp1"},
    "streams of FSDP2": {**RANKS, "parallel": "fsdp2"},
    "buckets of DDP": {**RANKS, "parallel": "ddp"},
    "private pools of CUDA graphs": {"model": "gpt2", **SMALL, "compile": "reduce-overhead"},
    "a cache that grows": {"model": "gpt2", **SMALL, "generate": 20},
    "an offloaded cache": {"model": "gpt2", **SMALL, "generate": 20, "cache": "offloaded"},
}


def check(traced):
    trace = traced.trace
    (found,) = Replays(trace, engine.player()).on([roomy_card(look_up(traced.prediction.plan))])
    assert (found.refused, found.retries) == (None, 0)
    # PyTorch counts as requested what waits for another stream, too; a reading does not.
    waits = any(aside.what == "used_by" for aside in trace.asides)
    for reading, peaks in zip(trace.readings, found.intervals, strict=True):
        for rung in ALLOCATOR_RUNGS[waits:]:
            assert getattr(peaks, rung) == getattr(reading, rung), (reading.phase, reading.step)
    assert found.peaks.reserved == outcome(trace).peaks.reserved


def test_a_replay_under_the_runs_own_settings_gives_its_counters_in_every_phase(traced):
    check(traced)


@pytest.mark.nightly
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_so_does_one_of_every_kind_of_run(settings):
    answers = Answers()
    traced = answers.trace(make(settings))
    told = {aside.what for aside in traced.trace.asides}
    assert ("used_by" in told) is (settings.get("parallel") == "fsdp1")
    assert ("keep_pool" in told) is ("compile" in settings)
    check(traced)


def test_each_card_is_replayed_once(traced):
    asked_for = []

    def play(calls, cards, wanted):
        asked_for.extend(cards)
        return engine.player()(calls, cards, wanted)

    run, card = Replays(traced.trace, play), roomy_card(look_up(traced.prediction.plan))
    other = replace(card, conf="expandable_segments:True")
    first, second = run.on([card, other])
    assert run.on([other, card]) == [second, first]
    assert asked_for == [card, other]


def test_what_is_requested_needs_no_allocator(traced):
    phases = {one.phase: one.requested for one in traced.prediction.phases}
    assert {one.phase: one.requested for one in requested_phases(traced.trace)} == phases
    assert all(one.allocated is None for one in requested_phases(traced.trace))
