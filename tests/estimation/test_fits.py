"""Fitting is decided by a replay at the device's real size."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from memcalc import estimate
from memcalc.catalog import contexts, gpus
from memcalc.catalog.plan import make
from memcalc.engine.alloc_conf import parse_alloc_conf, without_fraction
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation import predict
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.estimation.estimate import answers
from memcalc.estimation.fits import (
    CODE,
    CONTEXT,
    NCCL,
    OLD_DRIVER,
    Device,
    judge,
    margin,
    outside_span,
    verdict_with_spare,
)
from memcalc.estimation.question import look_up
from memcalc.estimation.replays import Replays
from memcalc.records.levels import Levels
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict, Prediction, Span
from memcalc.records.replay import Card, Refused, Replay, Wanted
from memcalc.report.blocks import terminal
from memcalc.report.predictions import blocks
from memcalc.report.rows import fit_words
from tests.context_script import script

MIB = 1 << 20
SPAN = Span(low=100 * MIB, likely=150 * MIB, high=200 * MIB, source="test")


def device(capacity):
    return Device(name="x", capacity=capacity, context=SPAN)


def on(events, *cards):
    return engine.player()(events, cards, Wanted())


def judged(events, capacity, conf=""):
    (roomy,) = on(events, Card(conf=without_fraction(conf), capacity=1 << 36))
    settings = parse_alloc_conf(conf)
    return judge(lambda cards: on(events, *cards), settings, device(capacity), roomy.peaks)


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
    half = "per_process_memory_fraction:0.5"
    assert judged(events, 900 * MIB, half).verdict is FitVerdict.DOES_NOT_FIT
    assert judged(events, 1100 * MIB, half).verdict is FitVerdict.FITS


def test_what_a_fraction_allows_is_the_limit_that_is_told():
    half = "per_process_memory_fraction:0.5"
    fit = judged([(0, 500 * MIB)], 900 * MIB, half)
    assert fit.limit == (450 + 150) * MIB < fit.needed < fit.capacity
    assert fit.margin == fit.least_margin == -50 * MIB
    assert "of the 600.0 MiB that per_process_memory_fraction allows" in fit_words(fit)
    roomy = judged([(0, 500 * MIB)], 1100 * MIB, half)
    assert (roomy.margin, roomy.least_margin) == (50 * MIB, 50 * MIB)


UNROUNDED = Levels(**dict.fromkeys(Levels.__struct_fields__, 300 * MIB))


def reserve_all(cards):
    """Replay a request of 300 MiB by an allocator that allows what a fraction of a card does."""
    for card in cards:
        most = parse_alloc_conf(card.conf).reservable_bytes(card.capacity) or card.capacity
        fails = min(most, card.room) < 300 * MIB
        refused = Refused(asked=300 * MIB, free=card.room) if fails else None
        yield Replay(peaks=UNROUNDED, end=UNROUNDED, intervals=(), retries=0, refused=refused)


@example(capacity=401, spare=1, fraction=":0.9")
@given(st.integers(300, 900), st.integers(0, 300), st.sampled_from(("", ":0.5", ":0.9")))
def test_what_shall_stay_free_is_taken_off_the_device_and_the_verdict_follows(
    capacity, spare, fraction
):
    conf = fraction and f"per_process_memory_fraction{fraction}"
    fit = judge(reserve_all, parse_alloc_conf(conf), device(capacity * MIB), UNROUNDED)
    found = verdict_with_spare(fit, SPAN, spare * MIB)
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


@settings(max_examples=6)
@given(events=programs(), capacity=st.integers(200, 1600))
def test_shortcuts_say_what_two_replays_say(events, capacity):
    capacity *= MIB
    failed = [run.refused for run in on(events, *device(capacity).cards(""))]
    found = judged(events, capacity)
    roomy = found.needed_high <= capacity - margin(capacity) and not found.retries
    wanted = FitVerdict.FITS if roomy else FitVerdict.TIGHT
    if failed[0] is not None:
        wanted = FitVerdict.TIGHT if failed[1] is None else FitVerdict.DOES_NOT_FIT
    assert found.verdict is wanted


def test_where_nothing_can_replay_a_run_it_is_said_why_its_fit_is_unknown(traced):
    def nobody(calls, cards, wanted):
        raise EstimateError("There is no PyTorch: type pip install torch.")

    before = traced.prediction
    plan = replace(before.plan, alloc_conf="per_process_memory_fraction:0.9")
    found = predict.predict(look_up(plan), Replays(traced.trace, nobody), before.optimizer_state)
    assert found.fit is None
    assert found.unknown["fit"] == "There is no PyTorch: type pip install torch."
    assert found.peak == before.peak
    run = Replays(traced.trace, engine.player())
    played = predict.predict(look_up(plan), run, before.optimizer_state)
    assert played.fit.verdict is FitVerdict.FITS


A100 = gpus.find("A100-40GB")


def test_every_part_has_a_name_a_source_and_a_likely_figure_between_its_ends():
    for gpu in gpus.table():
        span = outside_span(gpu, look_up(Plan(model="gpt2")))
        assert [part.name for part in span.parts] == [CONTEXT, CODE]
        for part in span.parts:
            assert part.source
            assert part.low <= part.high
            if part.likely is not None:
                assert part.low <= part.likely <= part.high
        assert sum(part.low for part in span.parts) <= span.low <= span.likely <= span.high


def test_several_gpus_add_a_part_for_nccl():
    span = outside_span(A100, look_up(Plan(model="gpt2", devices=4, parallel="ddp")))
    alone = outside_span(A100, look_up(Plan(model="gpt2")))
    (part,) = (part for part in span.parts if part.name == NCCL)
    assert (span.low - alone.low, span.high - alone.high) == (part.low, part.high)


@pytest.mark.parametrize("name", ["A100-40GB", "V100-16GB", "RTX 3090", "RTX 2080 Ti"])
def test_all_kernels_at_the_start_take_more_than_those_that_are_used(name):
    gpu = gpus.find(name)
    span = contexts.ranges(gpu).eager
    assert span.low > contexts.ranges(gpu).total.high
    held = [r for r in script.table() if r.gpu == gpu.name and not r.lazy and not r.aside]
    assert held
    assert all(span.low <= r.low and r.high <= span.high for r in held)


def test_an_old_driver_may_load_all_kernels_where_an_old_pytorch_runs_on_it():
    lazy = outside_span(A100, look_up(Plan(model="gpt2", torch="2.1")))
    eager = outside_span(A100, look_up(Plan(model="gpt2", torch="2.0", module_loading="eager")))
    either = outside_span(A100, look_up(Plan(model="gpt2", torch="2.0")))
    assert (either.low, either.likely, either.high) == (lazy.low, lazy.likely, eager.high)
    assert [part.name for part in either.parts] == [CONTEXT, CODE, OLD_DRIVER]
    assert (
        outside_span(A100, look_up(Plan(model="gpt2", torch="2.0", module_loading="lazy"))) == lazy
    )


def test_a_full_gpu_gets_cached_blocks_back():
    span = predict.freed_cache_span(reserved=70, unlimited=90)
    assert (span.low, span.likely, span.high) == (70, 70, 90)
    assert [part.name for part in span.parts] == [predict.GIVEN_BACK]


def shown(*predictions):
    return terminal(blocks(predictions), width=120)


def analytic(**settings):
    return estimate(method="analytic", **settings)


def test_closed_forms_say_that_a_model_larger_than_the_gpu_does_not_fit():
    answer = analytic(model="meta-llama/Llama-3.1-8B", gpu="t4")
    assert answer.fit.verdict is FitVerdict.DOES_NOT_FIT
    assert "does not fit on T4: needs" in shown(answer)


def test_closed_forms_say_why_they_cannot_say_more():
    answer = analytic(model="gpt2", gpu="t4")
    assert answer.fit is None
    words = " ".join(shown(answer).split())
    assert "it needs at least 2.4 GiB of 14.6 GiB, by closed form 8.1 GiB" in words


def test_several_optimizers_side_by_side_have_a_column_of_verdicts():
    plans = [make({"model": "gpt2", "optim": optim, "gpu": "t4"}) for optim in ("sgd", "adamw")]
    table = shown(*answers(plans, method="analytic"))
    assert table.splitlines()[2].endswith("on t4")
    assert all(line.endswith("n/a") for line in table.splitlines()[3:5])


def test_a_gpu_for_a_run_on_the_cpu_is_refused():
    with pytest.raises(UsageError, match="leave out gpu t4, or target cpu"):
        analytic(model="gpt2", gpu="t4", target="cpu")


def test_a_run_on_the_cpu_is_not_said_to_have_the_kernels_of_a_gpu():
    assert not any(
        "A100" in note for note in look_up(make({"model": "gpt2", "target": "cpu"})).assumptions
    )


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_an_optimizer_for_bf16_alone_says_which_option_is_missing(precision):
    plans = [
        make({"model": "gpt2", "optim": optim, "precision": precision})
        for optim in ("adamw", "memcalc.adamw_bf16")
    ]
    first, second = answers(plans, method="analytic")
    assert first.components
    assert str(second).endswith("add --precision bf16, or name another optimizer.")


def test_settings_of_the_allocator_that_do_not_exist_fail_their_plan_alone():
    plan = make({"model": "distilbert-base-cased", "batch": 1, "seq": 8})
    answers = Answers()
    answers.trace(plan)
    wrong = replace(plan, alloc_conf="garbage_collection_threshold:7")
    first, second = answers.predict([wrong, plan])
    assert "between 0 and 1" in str(first)
    assert isinstance(second, Prediction)
