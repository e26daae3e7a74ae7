"""What is alive at the peak sums to the peak, whatever the trace."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import memcalc
from memcalc.advice.explain.difference import difference
from memcalc.advice.explain.explain import chapter
from memcalc.advice.explain.layers import cut, layers, write
from memcalc.advice.explain.peak import moments
from memcalc.advice.explain.timeline import thin, timeline
from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.records.levels import Levels
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.records.replay import Replay
from memcalc.records.trace import (
    Component,
    Mark,
    Phase,
    Storage,
    Trace,
    components,
    highest,
    program_end,
    walk,
)
from memcalc.report import explained
from memcalc.report.blocks import terminal

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.ZERO_GRAD)
PLAN = Plan(model="m")
WORDS = st.sampled_from(("h.0.mlp", "h.1.mlp", "h.2", "head", ""))


@st.composite
def made(draw):
    """Two steps of random births and deaths; every storage dies at most once."""
    storages, events, marks = [], [], [Mark(index=0, phase=Phase.LOAD, step=0)]
    living = []
    for step in (0, 1):
        for phase in PHASES:
            marks.append(Mark(index=len(events), phase=phase, step=step))
            for birth in draw(st.lists(st.booleans(), max_size=6)):
                if birth or not living:
                    living.append(len(storages))
                    events.append(len(storages))
                    storages.append(
                        Storage(
                            bytes=draw(st.integers(1, 1 << 24)),
                            component=draw(st.sampled_from(Component)),
                            phase=phase,
                            step=step,
                            module=draw(WORDS),
                            op=draw(st.sampled_from(("mm", "add"))),
                            until=draw(st.sampled_from(("", "MulBackward0"))),
                        )
                    )
                else:
                    events.append(~living.pop(draw(st.integers(0, len(living) - 1))))
    inventory = Inventory(model="m", task="t", head="H", tensors=())
    return Trace(
        storages=tuple(storages), events=tuple(events), marks=tuple(marks), inventory=inventory,
        steps=2, versions={"torch": "2.13.0"},
    )  # fmt: skip


def by_component(trace, events):
    """Levels by component after each event, the slow way: everything alive is added up again."""
    for index in range(len(events)):
        alive = set()
        for event in events[: index + 1]:
            alive ^= {event if event >= 0 else ~event}
        held = [trace.storages[number % len(trace.storages)] for number in alive]
        yield {
            component: sum(one.bytes for one in held if one.component is component)
            for component in Component
        }


@given(made(), st.none() | st.integers(1, 3))
def test_the_groups_sum_to_the_highest_level_of_their_phase(trace, depth):
    levels = [sum(level.values()) for level in by_component(trace, trace.events)]
    found = moments(trace, PLAN, depth=depth)
    marks = [*trace.marks, Mark(index=len(trace.events), phase=Phase.EVAL, step=9)]
    for mark, following in pairwise(marks):
        if mark.step != 1:
            continue
        moment = found[mark.phase]
        inside = [0, *levels][mark.index : following.index + 1]
        assert moment.requested == max(inside)
        assert sum(group.bytes for group in moment.groups) == moment.requested
        assert sum(moment.components.values()) == moment.requested
        sizes = [group.bytes for group in moment.groups]
        assert sizes == sorted(sizes, reverse=True)


def requested_alone(calls, cards, wanted):
    """A replay by an allocator that rounds nothing and keeps nothing."""
    level, levels, living = 0, [], {}
    for key, size in (call for call in calls if call != ("mark",)):
        level += size or -living[key]
        living[key] = size
        levels.append(Levels(requested=level, allocated=level, active=level, reserved=level))
    kept = levels[wanted.levels :] if wanted.levels is not None else []
    return [Replay(peaks=NOTHING, end=NOTHING, intervals=(), retries=0, levels=tuple(kept))]


NOTHING = Levels(requested=0, allocated=0, active=0, reserved=0)


@given(made())
def test_the_bands_sum_to_the_total_at_every_event(trace):
    line = timeline(trace, PLAN, requested_alone)
    whole = replace(trace, events=trace.events[: program_end(trace)])
    # The steady step is the last one.
    wanted = [index for index, (mark, *_) in enumerate(walk(whole)) if mark.step == 1]
    every = list(by_component(trace, whole.events))
    steady = [every[index] for index in wanted]
    assert list(line.requested) == [sum(level.values()) for level in steady]
    for moment, level in enumerate(steady):
        shown = {name: band[moment] for name, band in line.components.items()}
        assert shown == {name: level[name] for name in shown}
        assert sum(shown.values()) == line.requested[moment]
        assert line.requested[moment] == line.allocated[moment] == line.reserved[moment]
    covered = [moment for s in line.phases for moment in range(s.begin, s.end)]
    assert covered == list(range(len(steady)))


@given(made(), st.integers(1, 9))
def test_a_thinned_timeline_keeps_the_peak_and_real_moments(trace, moments_wanted):
    line = timeline(trace, PLAN, requested_alone)
    if not line.requested:
        return
    shown = thin(line, moments_wanted)
    assert len(shown.requested) == min(moments_wanted, len(line.requested))
    assert max(shown.requested) == max(line.requested)
    real = set(zip(*line.components.values(), line.reserved, strict=True))
    assert set(zip(*shown.components.values(), shown.reserved, strict=True)) <= real


def test_a_real_trace_says_what_its_prediction_says(traced):
    prediction = traced.prediction
    found = moments(traced.trace, prediction.plan)
    assert {p.phase: p.requested for p in prediction.phases} == {
        phase: moment.requested for phase, moment in found.items()
    }
    peak = found[prediction.peak.phase]
    assert peak.requested == prediction.peak.requested
    at_peak = components(traced.trace, highest(traced.trace)[prediction.peak.phase])
    assert peak.components == {name: size for name, size in at_peak.items() if size}
    line = timeline(traced.trace, prediction.plan, engine.player(prediction.plan))
    for phase in prediction.phases:
        inside = [m for s in line.phases if s.phase is phase.phase for m in range(s.begin, s.end)]
        if phase.phase is not Phase.ZERO_GRAD:  # its peak is the level it begins with
            assert max(line.allocated[m] for m in inside) == phase.allocated
            assert max(line.reserved[m] for m in inside) == phase.reserved


def test_what_keeps_a_storage_alive_is_said_of_every_kind(traced):
    found = moments(traced.trace, traced.prediction.plan)
    kept = {
        (g.component, g.module, g.op): g.kept for m in found.values() for g in m.groups if g.bytes
    }
    layers = "transformer.h.[0-2]"
    assert kept[Component.WEIGHTS, "transformer.wte", ""] == "weight of the model"
    assert (
        "from the first step on" in kept[Component.OPTIMIZER_STATE, f"{layers}.mlp.c_fc", "exp_avg"]
    )
    assert kept[Component.ACTIVATIONS, f"{layers}.mlp.act", "tanh"] == (
        "saved for backward until TanhBackward in the same module"
    )
    assert kept[Component.ACTIVATIONS, "lm_head", "mm"].startswith("outputs")
    assert kept[Component.ACTIVATIONS, "transformer.h.[0-1]", "add"].endswith(
        "NativeLayerNormBackward in transformer.h.[1-2].ln_1"
    )
    gradients = {k for (c, _, _), k in kept.items() if c is Component.GRADIENTS}
    assert gradients == {"gradient, until zero_grad"}


@pytest.mark.parametrize(
    ("path", "depth", "pattern"),
    [
        ("transformer.h.3.mlp.act", None, ("transformer", "h", "*", "mlp", "act")),
        ("transformer.h.3.mlp.act", 2, ("transformer", "h", "*")),
        ("transformer.h.3.mlp.act", 1, ("transformer",)),
        ("", 2, ()),
    ],
)
def test_a_path_is_cut_by_names_and_keeps_its_indices(path, depth, pattern):
    assert cut(path, depth)[0] == pattern


@given(st.sets(st.integers(0, 40), min_size=1))
def test_folded_indices_name_exactly_the_layers_there_are(numbers):
    inside = write(("h", "*"), [(number,) for number in numbers]).removeprefix("h.").strip("[]")
    found = set()
    for span in inside.split(","):
        low, _, high = span.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    assert found == numbers


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    config = models.find("HuggingFaceTB/SmolLM2-135M").config | {"num_hidden_layers": 6}
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(config))
    answers = Answers()
    return answers.trace(make({"model": str(path), "quant": "nf4-dq", "batch": 1, "seq": 8}))


def test_layers_sum_to_the_components_at_the_peak(quantized):
    kinds = layers(quantized.trace.inventory)
    packed = sum(kind.count * kind.tensors[0].bytes for kind in kinds if kind.quantized)
    constants = sum(kind.count * held.bytes for kind in kinds for held in kind.tensors[1:])
    held = quantized.prediction.components
    assert packed == held[Component.QUANTIZED_WEIGHTS]
    assert constants == held[Component.QUANTIZATION_CONSTANTS]


def test_quantized_layers_come_first_each_kind_once(quantized):
    kinds = layers(quantized.trace.inventory)
    assert [kind.quantized for kind in kinds] == sorted((k.quantized for k in kinds), reverse=True)
    assert kinds[0].name == "model.layers.[0-5].self_attn.q_proj"
    assert (kinds[0].count, kinds[0].shape) == (6, (576, 576))
    assert 0.5 < kinds[0].per_weight < 0.53
    assert not any("lora" in kind.name for kind in kinds)


def test_a_model_that_is_not_quantized_has_no_such_list(small_model):
    assert memcalc.explain(small_model, remedies=False, batch=1, seq=8).layers == ()


@pytest.fixture(scope="module")
def chapters(small_model, settings, traced, once):
    with once("checkpointed"):
        answers = Answers()
        other = answers.trace(make({"model": small_model, **settings, "checkpointing": True}))
    return chapter(traced), chapter(other)


@pytest.fixture(scope="module")
def found(chapters):
    return difference(*chapters)


def test_components_and_kinds_sum_to_the_change_of_what_tensors_ask_for(found):
    requested = next(change for change in found.rungs if change.name == "requested")
    assert sum(change.by for change in found.components) == requested.by != 0
    assert sum(change.by for change in found.kinds) == requested.by


def test_the_setting_that_changed_is_named(found):
    assert found.settings == ("checkpointing False -> True",)
    assert found.versions == ()


def test_an_answer_does_not_differ_from_itself(chapters):
    same = difference(chapters[0], chapters[0])
    assert same.same
    assert terminal(list(explained.difference_blocks(same, 5))).startswith("no figure changed")
