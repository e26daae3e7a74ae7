"""Fitting is decided by a replay at the device's real size."""

from hypothesis import example, given
from hypothesis import strategies as st

from memcalc.allocator.replay import replay
from memcalc.allocator.settings import AllocatorSettings, parse_alloc_conf
from memcalc.estimation.fits import Device, judge, margin, with_spare
from memcalc.records.prediction import FitVerdict, Span
from memcalc.report.rows import fit_words

MIB = 1 << 20
CONTEXT = Span(low=100 * MIB, likely=150 * MIB, high=200 * MIB, source="test")


def device(capacity):
    return Device(name="x", capacity=capacity, context=CONTEXT)


def judged(events, capacity, settings=None):
    settings = settings or AllocatorSettings()
    unlimited = replay(iter(events), settings, 1 << 50).peaks
    return judge(lambda: iter(events), settings, device(capacity), unlimited)


def test_a_run_that_fits_only_after_its_cache_is_freed_is_tight():
    # 300 MiB in one block, then 320 MiB: both are reserved where there is room, one at a time else.
    events = [(0, 300 * MIB), (0, 0), (1, 320 * MIB), (1, 0)]
    roomy, tight = judged(events, 1024 * MIB), judged(events, 600 * MIB)
    assert (roomy.verdict, roomy.retries) == (FitVerdict.FITS, 0)
    assert roomy.needed == (620 + 150) * MIB
    assert (tight.verdict, tight.retries) == (FitVerdict.TIGHT, 1)
    assert tight.needed_high == (320 + 200) * MIB
    assert "frees cached blocks once" in fit_words(tight)


def test_a_run_is_tight_where_its_range_or_a_margin_of_3_percent_reaches_the_card():
    events = [(0, 500 * MIB)]
    assert judged(events, 722 * MIB).verdict is FitVerdict.FITS
    assert judged(events, 720 * MIB).verdict is FitVerdict.TIGHT
    assert judged(events, 698 * MIB).verdict is FitVerdict.TIGHT
    assert judged(events, 600 * MIB).verdict is FitVerdict.TIGHT
    assert judged(events, 598 * MIB).verdict is FitVerdict.DOES_NOT_FIT


def test_a_fraction_of_the_device_limits_even_where_there_is_room():
    events = [(0, 500 * MIB)]
    half = parse_alloc_conf("per_process_memory_fraction:0.5")
    assert judged(events, 900 * MIB, half).verdict is FitVerdict.DOES_NOT_FIT
    assert judged(events, 1100 * MIB, half).verdict is FitVerdict.FITS


def test_what_a_fraction_allows_is_the_limit_that_is_told():
    half = parse_alloc_conf("per_process_memory_fraction:0.5")
    fit = judged([(0, 500 * MIB)], 900 * MIB, half)
    assert fit.limit == (450 + 150) * MIB < fit.needed < fit.capacity
    assert fit.margin == fit.least_margin == -50 * MIB
    assert "of the 600.0 MiB that per_process_memory_fraction allows" in fit_words(fit)
    roomy = judged([(0, 500 * MIB)], 1100 * MIB, half)
    assert (roomy.margin, roomy.least_margin) == (50 * MIB, 50 * MIB)


@example(capacity=401, spare=1, fraction=":0.9")
@given(st.integers(300, 900), st.integers(0, 300), st.sampled_from(("", ":0.5", ":0.9")))
def test_what_shall_stay_free_is_taken_off_the_device_and_the_verdict_follows(
    capacity, spare, fraction
):
    settings = parse_alloc_conf(fraction and f"per_process_memory_fraction{fraction}")
    fit = judged([(0, 300 * MIB)], capacity * MIB, settings)
    found = with_spare(fit, CONTEXT, spare * MIB)
    if fit.verdict is FitVerdict.DOES_NOT_FIT or 400 + spare > capacity:
        assert found is FitVerdict.DOES_NOT_FIT
    else:
        fits = 500 + max(spare, 0.03 * capacity) <= capacity
        assert found is (FitVerdict.FITS if fits else FitVerdict.TIGHT)


@st.composite
def programs(draw):
    events, live = [], []
    for key in range(draw(st.integers(1, 30))):
        events.append((key, draw(st.integers(1, 64 * MIB))))
        live.append(key)
        if draw(st.booleans()):
            events.append((live.pop(draw(st.integers(0, len(live) - 1))), 0))
    return events


@given(events=programs(), capacity=st.integers(200, 1600))
def test_shortcuts_say_what_two_replays_say(events, capacity):
    capacity *= MIB
    settings = AllocatorSettings()
    failed = [
        replay(iter(events), settings, capacity, available=max(capacity - context, 0)).out_of_memory
        for context in (CONTEXT.high, CONTEXT.low)
    ]
    found = judged(events, capacity)
    roomy = found.needed_high <= capacity - margin(capacity) and not found.retries
    wanted = FitVerdict.FITS if roomy else FitVerdict.TIGHT
    if failed[0] is not None:
        wanted = FitVerdict.TIGHT if failed[1] is None else FitVerdict.DOES_NOT_FIT
    assert found.verdict is wanted
