"""The search finds what trying every size would, with few questions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memcalc.advice.fit.records import Probe
from memcalc.advice.fit.search import Oracle, fits, islands, largest, may_fit
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import Judged
from memcalc.estimation.fits import device_of, margin
from memcalc.records.levels import Levels
from memcalc.records.prediction import Fit, FitVerdict

OFFERED = 1 << 34
CAPACITY = OFFERED - margin(OFFERED)


class Device:
    """Memory that grows with size; counts the questions."""

    def __init__(self, needed, band=0):
        self.needed, self.band, self.asked = needed, band, {}

    def __call__(self, size):
        if size not in self.asked:
            high = self.needed(size)
            verdict = FitVerdict.FITS if high <= CAPACITY else FitVerdict.DOES_NOT_FIT
            if high > CAPACITY >= high - self.band:
                verdict = FitVerdict.TIGHT
            fit = Fit(
                gpu="x",
                capacity=OFFERED,
                needed=high,
                needed_high=high,
                metric="process_used",
                verdict=verdict,
            )
            self.asked[size] = Probe(batch=size, seq=None, fit=fit)
        return self.asked[size]


growing = st.lists(st.integers(1, CAPACITY // 8), min_size=1, max_size=60)


@given(steps=growing, start=st.integers(1, 60), band=st.integers(0, CAPACITY // 8))
def test_any_growing_memory_is_searched_to_the_byte(steps, start, band):
    levels = [sum(steps[: size + 1]) for size in range(len(steps))]
    device = Device(lambda size: levels[size - 1], band)
    limit = len(levels)
    for accept, allowed in ((fits, CAPACITY), (may_fit, CAPACITY + band)):
        wanted = sum(level <= allowed for level in levels)
        assert largest(device, accept, start=start, limit=limit) == wanted


@given(
    base=st.integers(0, CAPACITY // 2),
    slope=st.integers(1 << 10, CAPACITY // 2),
    bend=st.integers(0, 1 << 21),
    start=st.integers(1, 64),
)
def test_memory_that_grows_evenly_takes_few_questions(base, slope, bend, start):
    device = Device(lambda size: base + slope * size + bend * (size % 3))
    found = largest(device, fits, start=start, limit=1 << 20)
    assert found == 0 or device(found).fit.fits
    assert found == 1 << 20 or not device(found + 1).fit.fits
    assert len(device.asked) <= 34


def test_on_a_device_that_is_full_the_middle_is_tried():
    # From 72 on the allocator gives its cache back, and reserved is the device's size.
    device = Device(lambda size: min(size, 72) if size <= 102 else 2 * CAPACITY)

    def ask(size):
        found = device(size)
        full = replace(found.fit, needed=CAPACITY, needed_high=CAPACITY, retries=1)
        return replace(found, fit=full) if 72 <= size <= 102 else found

    assert largest(ask, fits, start=72, limit=1 << 20) == 102
    assert len(device.asked) <= 9


@given(longest=st.integers(1, 3000), start=st.integers(1, 64))
def test_where_the_model_takes_no_more_the_search_ends(longest, start):
    device = Device(lambda size: size)
    start = min(start, longest)

    def ask(size):
        return device(size) if size <= longest else None

    assert largest(ask, fits, start=start, limit=1 << 20) == longest


def test_a_round_size_that_fits_beyond_the_first_that_does_not_is_found():
    # Seen: Mistral 7B with checkpointing on an H200, where 241 does not fit and 256 does.
    device = Device(lambda size: CAPACITY if size <= 240 or size in (248, 256) else CAPACITY + 1)
    found = largest(device, fits, start=200, limit=1 << 20)
    assert islands(device, 240, 1 << 20) == 256
    assert islands(device, 240, 255) == 248
    assert islands(device, 256, 1 << 20) == 256
    assert found in (240, 248, 256)


PLAN = make({"model": "gpt2", "gpu": "t4", "batch": 1, "seq": 64})
DEVICE = device_of(gpus.find("t4"), plan=PLAN)
LIMIT = 1000
NONE = Levels(requested=0, allocated=0, active=0, reserved=0)


class Made(Answers):
    """Answers of runs that need as many bytes as they have tokens."""

    def __init__(self, workers=1):
        super().__init__(workers=workers)
        self.asked = []

    def judge(self, plan, devices, lengths=()):
        self.asked.append((plan.batch, plan.seq))
        needed = plan.batch * plan.seq
        verdict = FitVerdict.FITS if needed <= LIMIT else FitVerdict.DOES_NOT_FIT
        fit = Fit(gpu="T4", capacity=LIMIT, needed=needed, metric="process_used", verdict=verdict)
        return Judged(peaks=NONE, fits=(fit,) * len(devices), seq=plan.seq)


def test_a_question_is_asked_once_however_often_it_is_put():
    answers = Made()
    oracle = Oracle(answers, None)
    assert oracle.probe(PLAN, DEVICE) == oracle.probe(PLAN, DEVICE)
    assert answers.asked == [(1, 64)]


def test_what_is_larger_than_one_that_does_not_fit_is_not_run():
    answers = Made(workers=2)
    plans = [replace(PLAN, batch=b, seq=s) for s in (64, 128, 256) for b in (1, 4, 8, 16, 64)]
    found = Oracle(answers, None).table(plans, DEVICE)
    assert [probe.fit.fits for probe in found] == [p.batch * p.seq <= LIMIT for p in plans]
    assert (64, 256) not in answers.asked
    assert found[-1].fit.metric == "allocated"


def test_several_questions_are_answered_in_their_order():
    answers = Made(workers=2)
    oracle = Oracle(answers, None)
    plans = [replace(PLAN, batch=n) for n in range(1, 30)]
    found = oracle.each([lambda plan=plan: oracle.probe(plan, DEVICE) for plan in plans])
    assert [probe.batch for probe in found] == [plan.batch for plan in plans]
    assert sorted(answers.asked) == [(p.batch, 64) for p in plans]


def test_a_run_that_fails_is_an_error():
    class Broken(Made):
        def judge(self, plan, devices, lengths=()):
            raise EstimateError("it broke")

    with pytest.raises(EstimateError, match="it broke"):
        Oracle(Broken(), None).probe(PLAN, DEVICE)
