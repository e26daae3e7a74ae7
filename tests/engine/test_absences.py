"""Memory of a sleeping engine, which leaves the GPU behind the allocator's back."""

import pytest

from memcalc.engine.absences import Absence, take_away
from memcalc.records.model import Inventory
from memcalc.records.trace import (
    Component,
    Mark,
    Phase,
    PhaseReading,
    Storage,
    Trace,
    components,
    highest,
)

SIZES = (10, 100, 5, 50, 5)
KINDS = ("weights", "kv_cache", "temporaries", "gradients", "temporaries")
GENERATES_TRAINS_GENERATES = (0, 1, 2, ~2, 3, ~3, 4, ~4)
BEGINS = {Phase.LOAD: 0, Phase.BACKWARD: 4, Phase.ZERO_GRAD: 6}
PEAKS = (115, 160, 115)
"""As PyTorch counts them, of each phase."""


def trace_of(*events):
    return Trace(
        storages=tuple(
            Storage(bytes=size, component=Component(kind), phase=Phase.LOAD, step=0)
            for size, kind in zip(SIZES, KINDS, strict=True)
        ),
        events=events,
        marks=tuple(Mark(index=at, phase=phase, step=0) for phase, at in BEGINS.items()),
        inventory=Inventory(model="", task="", head="", tensors=()),
        steps=1,
        whole=True,
        readings=tuple(
            PhaseReading(step=0, phase=phase, requested=n, allocated=n, active=n, reserved=n + 20)
            for phase, n in zip(BEGINS, PEAKS, strict=True)
        ),
    )


def test_a_run_without_sleep_is_left_alone():
    trace = trace_of(*GENERATES_TRAINS_GENERATES)
    assert take_away(trace, []) is trace
    assert (
        take_away(
            trace, [Absence(at=0, bytes=100, begin=2, since=0, end=2, until=1, storages=(1,))]
        )
        is trace
    )


def test_an_engine_that_sleeps_is_not_on_the_gpu_while_gradients_are():
    awake = trace_of(*GENERATES_TRAINS_GENERATES)
    away = Absence(at=0, bytes=110, begin=3, since=0, end=7, until=2, storages=(1,))
    slept = take_away(awake, [away])
    assert slept.events == (0, 1, 2, ~1, ~2, 3, ~3, 4, 5, ~4)
    assert slept.storages[5] == slept.storages[1]
    assert [mark.index for mark in slept.marks] == [0, 5, 7]
    at = highest(slept)
    held = {phase: components(slept, event)[Component.KV_CACHE] for phase, event in at.items()}
    assert held == {Phase.LOAD: 100, Phase.BACKWARD: 0, Phase.ZERO_GRAD: 100}
    # What is mapped is more than what tensors asked for.
    assert [reading.reserved for reading in slept.readings] == [135, 70, 135]
    assert [reading.requested for reading in slept.readings] == [115, 60, 115]
    assert "110 B of an engine leave the GPU" in slept.assumptions[0]


def test_what_leaves_as_a_phase_ends_is_gone_in_the_next_one():
    # Nothing is born or dies between the two, nor between waking and the phase before that.
    away = Absence(at=0, bytes=110, begin=4, since=0, end=6, until=2, storages=(1,))
    slept = take_away(trace_of(*GENERATES_TRAINS_GENERATES), [away])
    assert slept.events == (0, 1, 2, ~2, ~1, 3, ~3, 5, 4, ~4)
    assert [mark.index for mark in slept.marks] == [0, 5, 7]
    at = highest(slept)
    held = {phase: components(slept, event)[Component.KV_CACHE] for phase, event in at.items()}
    assert held == {Phase.LOAD: 100, Phase.BACKWARD: 0, Phase.ZERO_GRAD: 100}
    assert [reading.reserved for reading in slept.readings] == [135, 70, 135]


@pytest.mark.parametrize("end", [None, 4])
def test_what_is_freed_in_its_sleep_dies_once(end):
    away = Absence(at=0, bytes=100, begin=2, since=0, end=end, storages=(1,))
    slept = take_away(trace_of(0, 1, 2, ~1, 3, ~2, 4), [away])
    assert slept.events == (0, 1, ~1, 2, 3, ~2, 4)
    assert len(slept.storages) == len(SIZES)
