"""The shipped ranges of what is outside the allocator follow from the readings alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.catalog import contexts, gpus
from memcalc.files.shipped import configs
from tests.context_script import DOCS, Reading, Stage, script

MIB = 1 << 20
GPUS = gpus.table()


def reading(gpu, low, high=None, stage=Stage.TRAINING, **more):
    return Reading(
        gpu=gpu, stage=stage, low=low * MIB, high=(high or low) * MIB, lazy=True, source="a test",
        **more,
    )  # fmt: skip


EAGER = Reading(gpu="T4", stage=Stage.TRAINING, low=1, high=900 * MIB, lazy=False, source="a test")


@pytest.fixture
def known():
    """Makes the table hold these readings only."""
    with pytest.MonkeyPatch.context() as patch:
        yield lambda *readings: patch.setattr(script, "table", lambda: (EAGER, *readings))


BARE = reading("T4", 100, stage=Stage.CONTEXT)


def total_of(gpu):
    return script.ranges_of(gpu).total


def limits(span):
    return span.low / MIB, span.likely / MIB, span.high / MIB


def test_the_shipped_ranges_and_the_docs_are_what_the_script_makes_of_the_readings():
    assert (configs() / contexts.TABLE).read_text() == script.ranges_text()
    assert script.document(DOCS.read_text()) == DOCS.read_text()
    assert all(reading.source in DOCS.read_text() for reading in script.table())


def test_every_gpu_has_its_ranges_and_those_of_any_gpu_have_no_likely_figure():
    for gpu in GPUS:
        assert contexts.ranges(gpu) == script.ranges_of(gpu)
    assert contexts.ranges(None).total.likely is None
    assert contexts.ranges(None).eager is None


def test_three_readings_of_a_gpu_are_spread_as_each_lies_to_the_others(known):
    known(BARE, reading("H20", 900), *(reading("T4", low, low + 10) for low in (120, 150, 130)))
    span = total_of(gpus.find("t4"))
    # 120 is 0.83 of what lies between 155 and 135; 160 is 1.23 of what lies between 125 and 135.
    assert limits(span) == pytest.approx((135 * 120 / 145, 135, 135 * 160 / 130))
    widened = "widened by 3 readings on all GPUs"
    assert span.source == f"3 published readings on T4, {widened}"


def test_one_reading_more_lies_inside_nine_times_of_ten():
    readings = script.comparable(frozenset({Stage.LOADING, Stage.INFERENCE, Stage.TRAINING}))
    inside = []
    for number, left_out in enumerate(readings):
        rest = (*readings[:number], *readings[number + 1 :])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(script, "comparable", lambda moments, rest=rest: rest)
            span = script._span(gpus.find(left_out.gpu), script._MODEL)
        inside.append(span.low <= left_out.middle <= span.high)
    assert len(inside) >= 30
    assert sum(inside) >= 0.9 * len(inside)


def test_a_kind_that_varies_shows_how_another_one_would(known):
    known(
        BARE,
        *(reading("T4", size) for size in (100, 100, 100)),
        *(reading("A100-40GB", size) for size in (400, 400, 600)),
    )
    assert limits(total_of(gpus.find("t4")))[2] == 150


def test_gpus_of_one_kind_share_their_readings(known):
    known(BARE, reading("L40", 500), reading("L40S", 500), reading("RTX 6000 Ada", 500))
    spans = {total_of(gpus.find(name)) for name in ("L40", "L40S", "RTX 6000 Ada")}
    assert [limits(span) for span in spans] == [(500, 500, 500)]
    assert "3 published readings on L40, L40S, RTX 6000 Ada" in spans.pop().source


def test_two_readings_show_no_spread_so_that_of_all_gpus_is_taken(known):
    # 2 and 3 MiB for each of 40 multiprocessors, 5 for each of 108.
    known(BARE, reading("T4", 80), reading("T4", 120), reading("A100-40GB", 540))
    span = total_of(gpus.find("t4"))
    assert limits(span) == (80, 120, 200)
    assert span.source == "per multiprocessor, 3 such readings on 2 GPUs, 2 of its kind"


def test_a_gpu_smaller_than_any_that_was_read_is_not_taken_to_hold_less_than_those(known):
    known(BARE, reading("T4", 80), reading("A100-40GB", 540))
    low, likely, high = limits(total_of(gpus.find("A2")))
    assert (low, high) == (20, 200)
    assert likely == pytest.approx(40 * 3.5)


def test_a_running_process_holds_no_less_than_the_bare_context_of_its_gpu(known):
    known(reading("B200", 700, stage=Stage.CONTEXT), reading("T4", 80), reading("T4", 240))
    assert limits(total_of(gpus.find("b200")))[0] == 700


def test_context_and_modules_make_the_total(known):
    bare = [reading("T4", size, stage=Stage.CONTEXT) for size in (100, 104, 108)]
    known(*bare, *(reading("T4", size) for size in (160, 160, 160)))
    held = script.ranges_of(gpus.find("t4"))
    low, likely, high = limits(held.context)
    assert (low, likely, high) == pytest.approx((104 * 100 / 106, 104, 104 * 108 / 102))
    assert limits(held.modules) == pytest.approx((160 - high, 56, 160 - low))
    assert held.context.low + held.modules.high == held.total.high
    assert held.context.likely + held.modules.likely == held.total.likely


def test_three_readings_by_memcalc_go_before_any_number_of_published_ones(known):
    published = [reading("T4", 300) for _ in range(9)]
    known(BARE, *published, reading("T4", 140, measured=True), reading("T4", 150, measured=True))
    assert total_of(gpus.find("t4")).high == 300 * MIB
    known(BARE, *published, *(reading("T4", s, measured=True) for s in (150, 150, 150)))
    span = total_of(gpus.find("t4"))
    assert limits(span)[1] == 150
    assert span.high < 300 * MIB
    assert span.source.startswith("3 readings by memcalc on T4")


def test_what_is_set_aside_or_loaded_at_once_does_not_count(known):
    three = [reading("T4", size) for size in (150, 150, 150)]
    known(BARE, *three, reading("T4", 5000, aside="NCCL"))
    assert limits(total_of(gpus.find("t4"))) == (150, 150, 150)


def _contains(outer, inner):
    return outer.low <= inner.low and inner.high <= outer.high


def test_the_range_of_any_gpu_contains_that_of_every_gpu():
    for gpu in GPUS:
        anywhere, here = script.ranges_of(None), script.ranges_of(gpu)
        assert _contains(anywhere.total, here.total)
        assert _contains(anywhere.context, here.context)
        assert anywhere.total.likely is None
        assert here.context.low <= here.context.likely <= here.context.high
        assert here.total.low <= here.total.likely <= here.total.high
        assert here.context.high <= here.total.high


def test_the_range_of_a_gpu_contains_each_of_its_readings():
    counted = [r for r in script.table() if r.lazy and not r.aside]
    with_model = [r for r in counted if r.stage is not Stage.CONTEXT]
    assert len(with_model) > 25
    for r in with_model:
        assert _contains(total_of(gpus.find(r.gpu)), r), r


NAMES = st.sampled_from([gpu.name for gpu in GPUS])
READINGS = st.lists(
    st.builds(
        lambda gpu, low, more, moment, measured: Reading(
            gpu=gpu, stage=moment, low=low, high=low + more, lazy=True, source="a test",
            measured=measured,
        ),
        NAMES,
        st.integers(1, 1 << 30),
        st.integers(0, 20 * MIB),
        st.sampled_from([Stage.LOADING, Stage.INFERENCE, Stage.TRAINING]),
        st.just(False),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(readings=READINGS)
def test_whatever_was_read_lies_in_the_range_of_its_gpu_and_of_any(readings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "table", lambda: (BARE, EAGER, *readings))
        anywhere = total_of(None)
        for r in readings:
            span = total_of(gpus.find(r.gpu))
            assert _contains(span, r)
            assert _contains(anywhere, r)


def test_readings_are_possible_and_of_many_kinds_and_none_is_there_twice():
    for reading in script.table():
        assert gpus.find(reading.gpu).name == reading.gpu
        assert 0 < reading.low <= reading.high < 8 << 30
        # Two or three rounded figures leave open what half of their last digits leave open.
        assert reading.high - reading.low < 40 * MIB
        assert reading.source
        assert reading.measured or reading.source.startswith("https://")

    known = [(r.gpu, r.stage, r.low, r.source) for r in script.table()]
    assert len(known) == len(set(known)) >= 40
    assert len({r.gpu for r in script.table()}) >= 18


def test_only_readings_of_lazily_loaded_kernels_count_as_comparable():
    eager = [r for r in script.table() if not r.lazy]
    assert {r.stage for r in eager} == {Stage.TENSOR, Stage.TRAINING}
    lazy = [r.high for r in script.table() if r.lazy and not r.aside and r.gpu == "RTX 3090"]
    assert max(lazy) < min(r.low for r in eager if r.gpu == "RTX 3090") / 2


def test_an_out_of_memory_message_gives_what_is_left_and_how_sure_that_is():
    # github.com/hpcaitech/Open-Sora/issues/697: 14.67 - 14.55 GiB is 122.88 MiB, less 23.38.
    low, high = script.outside("14.67 GiB", ["14.55 GiB", "23.38 MiB"])
    assert low < 99.5 * MIB < high
    # Half of 0.01 GiB twice, and half of 0.01 MiB.
    assert (high - low) / MIB == pytest.approx(2 * (5.12 + 5.12 + 0.005), abs=1e-4)
