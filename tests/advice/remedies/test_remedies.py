"""Remedies are estimates, not guesses; and the combination that is found holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memcalc.advice.explain.records import Explanation
from memcalc.advice.remedies.bounds import bound_savings, kept_beyond_step
from memcalc.advice.remedies.records import Figures, Remedy, Search, Trial, limit_goal
from memcalc.advice.remedies.search import advise, candidates, search, stages
from memcalc.advice.remedies.trials import apply
from memcalc.catalog.plan import make
from memcalc.estimation.analytic import least
from memcalc.estimation.estimate import answers
from memcalc.files import artifact
from memcalc.records.plan import Plan
from memcalc.records.prediction import ALLOCATOR_RUNGS, Fit, FitVerdict, Peak
from memcalc.records.trace import Phase
from memcalc.report import explained as report
from memcalc.report import saved
from memcalc.report.blocks import markdown, terminal


def anew(*plans):
    found = list(answers(plans, use_cache=False))
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("every", [5, 1])
def test_every_saving_is_the_difference_of_two_full_estimates(explained, every):
    keys = {option.remedy.key for option in explained.trials}
    assert keys >= {"fused", "expandable", "accumulate", "amp", "chunked loss", "checkpointing",
                    "checkpointing/2", "8-bit states", "bf16", "bf16, corrected", "LoRA",
                    "in backward", "outputs", "kv cache"}  # fmt: skip
    plan, options = explained.figures.plan, explained.trials[::every]
    base, *others = anew(plan, *(apply(plan, option.remedy) for option in options))
    for option, other in zip(options, others, strict=True):
        assert option.error is None, option
        for rung in ALLOCATOR_RUNGS:
            difference = getattr(base.peak, rung) - getattr(other.peak, rung)
            assert option.saving(explained.figures, rung) == difference


def test_operations_follow_what_runs(explained):
    more = {o.remedy.key: o.extra_flops(explained.figures) for o in explained.trials}
    # A third of all products are forward's; all layers run once more, the head does not.
    assert 0 < more["checkpointing/2"] < more["checkpointing"] < 1 / 3
    assert 0 < more["chunked loss"] < 1 / 3
    assert more["fused"] == more["8-bit states"] == 0
    assert more["LoRA"] < 0


def test_the_combination_holds_when_it_is_estimated_again(explained):
    best = explained.search.best
    (again,) = anew(best.figures.plan)
    assert best.remedies
    assert best.figures.needed <= explained.search.limit < explained.figures.needed
    assert again.peak == best.figures.peak


def test_an_explanation_reads_back_from_its_file(explained):
    import json

    data = json.loads(saved.as_json(explained))
    assert artifact.decode(Explanation, data) == explained
    assert sum(group["bytes"] for group in data["peak"]["groups"]) == data["peak"]["requested"]


def offered(**settings):
    plan = make({"model": "gpt2", "batch": 4, **settings})
    return plan, {remedy.key: remedy for remedy in candidates(plan)}


@pytest.mark.parametrize(
    ("change", "key", "there"),
    [
        ({"set_to_none": False}, "set_to_none", True),
        ({}, "set_to_none", False),
        ({"attention": "eager"}, "sdpa", True),
        ({"attention": "flash"}, "sdpa", False),
        ({"optim": "adamw_torch_fused"}, "fused", False),
        ({"optim": "adam8bit"}, "8-bit states", False),
        ({"lora": "r=8"}, "LoRA", False),
        ({"freeze": ["*wte*"]}, "LoRA", True),
        ({"checkpointing": True}, "checkpointing", False),
        ({"checkpointing": True, "checkpoint_every": 2}, "checkpointing", True),
        ({"gpu": "a100-40gb", "precision": "amp-bf16"}, "amp", False),
        ({}, "outputs", True),
        ({"keep_outputs": False}, "outputs", False),
        ({"loop": "trainer"}, "outputs", False),
        ({}, "kv cache", True),
        ({"kv_cache": False}, "kv cache", False),
        ({"checkpointing": True}, "kv cache", False),
        ({"alloc_conf": "expandable_segments:True"}, "expandable", False),
    ],
)
def test_a_remedy_is_there_unless_the_plan_has_it_already(change, key, there):
    assert (key in offered(**change)[1]) is there


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        ({"batch": 1}, "accumulate", "a batch of one"),
        ({"loop": "trainer"}, "in backward", "clips"),
        ({"optim": "adafactor"}, "8-bit states", "no adafactor with 8-bit states"),
        ({"optim": "sgd"}, "8-bit states", "keeps no state"),
        ({"optim": "adamw", "optim_args": {"maximize": True}}, "8-bit states", "no maximize"),
        ({"optim": "adafactor"}, "fused", "no fused step"),
        ({"target": "cpu"}, "expandable", "CPU"),
        ({"model": "distilbert-base-cased"}, "chunked loss", "causal language model"),
        ({"model": "openai/clip-vit-base-patch32"}, "accumulate", "compares the samples"),
    ],
)
def test_what_cannot_be_tried_is_listed_with_its_reason(change, key, reason):
    assert reason in offered(**change)[1][key].unfit


@pytest.mark.parametrize(
    ("optim", "twin"),
    [
        ("adamw", "adamw8bit"),
        ("adamw_torch_fused", "adamw8bit"),
        ("adam", "adam8bit"),
        ("lion", "lion8bit"),
        ("pagedlion", "pagedlion8bit"),
        ("bitsandbytes.adamw", "adamw8bit"),
        ("rmsprop", "rmsprop8bit"),
        ("adagrad", "adagrad8bit"),
    ],
)
def test_8_bit_states_are_those_of_the_same_optimizer(optim, twin):
    plan, found = offered(optim=optim, optim_args={"lr": 0.01})
    changed = apply(plan, found["8-bit states"])
    assert (changed.optim, changed.optim_args) == (twin, (("lr", 0.01),))


@given(batch=st.integers(2, 64), accum=st.integers(1, 4))
def test_smaller_micro_batches_hold_exactly_the_samples_of_the_step(batch, accum):
    plan, found = offered(batch=batch, grad_accum=accum)
    changed = apply(plan, found["accumulate"])
    assert changed.batch * changed.grad_accum == batch * accum
    assert changed.batch < batch


def test_expandable_segments_replace_what_the_plan_says_of_them():
    plan, found = offered(alloc_conf="expandable_segments:False,max_split_size_mb:128")
    changed = apply(plan, found["expandable"])
    assert changed.alloc_conf == "max_split_size_mb:128,expandable_segments:True"


def test_a_gpu_without_bf16_is_offered_fp16():
    assert dict(offered(gpu="t4")[1]["amp"].changes)["precision"] == "amp-fp16"
    assert dict(offered(gpu="l4")[1]["amp"].changes)["precision"] == "amp-bf16"


class Scales:
    """Trials with made-up figures: each remedy takes its share off, each piece its own.

    A whole step needs ``more`` than two of its micro-batches; what is ``broken`` has no figures.
    """

    at_once = 2

    def __init__(self, plan, shares, *, more=1.0, broken=(), before=None):
        self.plan, self.before = plan, before or _figures(plan, 1 << 20)
        self.shares = shares
        self.more = more
        self.broken = broken

    def each(self, stages):
        return map(self.one, stages)

    def bound_savings(self, remedies):
        return self.before.peak.requested

    def one(self, remedies):
        if any(remedy.key in self.broken for remedy in remedies):
            return Trial(remedies=tuple(remedies), error="it cannot run")
        size = 1 << 20
        for remedy in remedies:
            size = int(size * self.shares.get(remedy.key, 1.0))
            if remedy.key == "accumulate":
                changes = dict(remedy.changes)
                size = size * changes["batch"] // self.plan.batch
                size = int(size * self.more) if changes["grad_accum"] > 2 else size
        return Trial(remedies=tuple(remedies), figures=_figures(self.plan, size))


def _figures(plan, size):
    peak = Peak(
        phase=Phase.BACKWARD, requested=size, allocated=size, reserved=size, process_used=None
    )
    return Figures(plan=plan, peak=peak, context=None, fit=None, flops=None)


def _remedy(key, rank, *fields):
    changes = tuple((field, True) for field in fields)
    return Remedy(key=key, title=key, changes=changes, cost="", source="", rank=rank)


REMEDIES = [
    *(_remedy("fused", 0, "optim_args"), _remedy("expandable", 0, "alloc_conf")),
    *(_remedy("accumulate", 1, "batch", "grad_accum"), _remedy("amp", 2, "precision")),
    _remedy("checkpointing/2", 3, "checkpointing", "checkpoint_every"),
    _remedy("checkpointing", 4, "checkpointing", "checkpoint_every"),
    _remedy("LoRA", 7, "lora"),
]
SHARES = st.fixed_dictionaries(
    {r.key: st.floats(0.1, 1.2) for r in REMEDIES if r.key != "accumulate"}
)
BATCHES = st.sampled_from((1, 2, 6, 7, 12))


@given(SHARES, BATCHES, st.integers(1 << 10, 1 << 20), st.sampled_from((1.0, 1.05)))
def test_what_the_search_returns_holds_and_needs_each_of_its_remedies(shares, batch, limit, more):
    scales = Scales(Plan(model="m", batch=batch), shares, more=more)
    found = search(scales, REMEDIES, limit_goal(limit, scales.before))
    if found.best is None:
        return
    remedies = found.best.remedies
    assert found.best.figures.needed <= limit
    for remedy in remedies:
        # Two of its micro-batches never stand for a step in the end.
        if remedy.key == "accumulate":
            changes = dict(remedy.changes)
            assert changes["batch"] * changes["grad_accum"] == batch
        elif remedy.rank and shares[remedy.key] <= 1:
            fewer = [one for one in remedies if one is not remedy]
            assert scales.one(fewer).figures.needed > limit


@given(st.sets(st.sampled_from([r.key for r in REMEDIES if r.key != "accumulate"])))
def test_what_cannot_run_does_not_keep_the_others_from_being_found(broken):
    shares = {r.key: 0.5 for r in REMEDIES if r.key != "accumulate"}
    scales = Scales(Plan(model="m", batch=1), shares, broken=broken)
    working = {key for key in shares if key not in broken}
    # checkpointing replaces checkpointing/2
    most = len(working - ({"checkpointing/2"} if "checkpointing" in working else set()))
    found = search(scales, REMEDIES, limit_goal((1 << 20) >> most, scales.before))
    assert found.best is not None
    assert broken.isdisjoint(one.key for one in found.best.remedies)


def test_plans_that_weights_and_state_rule_out_are_not_estimated(traced, explained):
    before = explained.figures
    inventory = traced.trace.inventory
    goal = limit_goal(before.context.low + inventory.numel * 4, before)
    asked = []

    class Watched(Scales):
        def each(self, stages):
            asked.extend(stages)
            return super().each(stages)

    rows = [r for r in candidates(before.plan) if r.key in ("amp", "checkpointing")]
    found = search(Watched(before.plan, {}, before=before), rows, goal, inventory)
    assert (found.best, asked) == (None, [])
    assert found.ruled_out == 3  # as it is, with amp, with both


def test_what_is_ruled_out_by_is_below_every_real_peak(explained, traced):
    for option in explained.trials:
        plan = option.figures.plan
        assert least(plan, traced.trace.inventory) <= option.figures.peak.requested


def test_weights_around_adapters_count_in_the_plans_precision_and_shards_by_their_number(traced):
    inventory, model = traced.trace.inventory, traced.prediction.plan.model
    adapted = make({"model": model, "lora": "r=4", "precision": "bf16"})
    assert least(adapted, inventory) == 2 * inventory.numel
    whole, states, spread = (
        least(make({"model": model, "devices": 4, "parallel": name}), inventory)
        for name in ("ddp", "zero1", "fsdp2")
    )
    assert spread == whole // 4 < states < whole
    waiting = {"devices": 4, "parallel": "fsdp2", "parallel_args": {"offload": "cpu"}}
    assert least(make({"model": model, **waiting}), inventory) == 0


def test_a_quantized_base_may_stay_unprepared_and_adapters_be_smaller(small_model):
    plan = make({"model": small_model, "quant": "nf4", "lora": "r=16,target=all-linear"})
    changes = {remedy.key: dict(remedy.changes) for remedy in candidates(plan)}
    assert changes["no kbit prepare"] == {"kbit_prepare": False}
    assert changes["lower rank"] == {"lora": "r=8,target=all-linear"}
    done = make({"model": small_model, "quant": "nf4", "lora": "r=1", "kbit_prepare": False})
    assert not {"no kbit prepare", "lower rank"} & {remedy.key for remedy in candidates(done)}


def test_stages_grow_by_cost_and_replace_what_changes_the_same():
    assert [tuple(remedy.key for remedy in stage) for stage in stages(REMEDIES)] == [
        ("fused", "expandable"),
        ("fused", "expandable", "amp"),
        ("fused", "expandable", "amp", "checkpointing/2"),
        ("fused", "expandable", "amp", "checkpointing"),
        ("fused", "expandable", "amp", "checkpointing", "LoRA"),
    ]


def test_a_plan_that_holds_already_is_left_as_it_is(explained):
    before = explained.figures
    scales = Scales(before.plan, {}, before=before)
    found = search(scales, REMEDIES, limit_goal(before.needed, before))
    assert found.best.remedies == ()
    assert found.trials == ()


def test_the_high_end_of_the_context_counts(explained):
    figures = explained.figures
    spread = figures.context.high - figures.context.likely
    assert figures.needed == figures.peak.process_used + spread
    bare = replace(figures, peak=replace(figures.peak, process_used=None), context=None)
    assert bare.needed == figures.peak.reserved


def test_without_an_allocator_remedies_are_compared_by_what_is_requested(explained):
    def bare(peak):
        return replace(peak, allocated=None, reserved=None, process_used=None)

    prediction = replace(explained.prediction, peak=bare(explained.prediction.peak))
    on_cpu = replace(explained, prediction=prediction, search=None)
    text = terminal(report.blocks(on_cpu, 3))
    assert "requested MiB   FLOPs  remedy, and its cost" in text
    assert "requested MiB | FLOPs" in markdown(report.blocks(on_cpu, 3))


def test_what_fits_is_not_said_to_need_more_than_there_is():
    plan = make({"model": "gpt2", "gpu": "rtx 4090"})
    limit = 24 << 30
    before, unlimited = _figures(plan, 2 * limit), _figures(plan, limit + (1 << 30))
    fit = Fit(
        gpu="RTX 4090", capacity=limit, needed=limit - 2048, needed_high=limit - 1024,
        metric="process_used", verdict=FitVerdict.FITS,
    )  # fmt: skip
    best = Trial(remedies=(_remedy("amp", 2),), figures=replace(unlimited, fit=fit))
    found = Search(limit=limit, rung="process_used", trials=(best,), best=best)
    text = " ".join(line.text for line in report.search_lines(found, before))
    assert "needs 24.0 GiB" in text
    assert "25.0 GiB" not in text


def test_where_weights_are_divided_a_base_and_shards_may_wait_on_the_host():
    over = {"model": "gpt2", "devices": 2, "parallel": "fsdp2"}
    quantized = make({**over, "quant": "nf4"})
    found = {remedy.key: remedy for remedy in candidates(quantized)}
    both = apply(quantized, found["load on the host"])
    assert dict(both.parallel_args) == {"load": "cpu"}
    again = {remedy.key: remedy for remedy in candidates(both)}
    assert "load on the host" not in again
    assert dict(apply(both, again["offload"]).parallel_args) == {"load": "cpu", "offload": "cpu"}
    plain = {remedy.key for remedy in candidates(make(over))}
    assert "offload" in plain
    assert "load on the host" not in plain
    whole = {remedy.key for remedy in candidates(make({**over, "parallel": "ddp"}))}
    assert not whole & {"load on the host", "offload"}


def test_no_remedy_saves_more_than_the_bound_by_which_it_is_left_out(explained, traced):
    kept = kept_beyond_step(traced.trace, traced.prediction.plan, traced.prediction.peak.phase)
    before = explained.figures.peak.requested
    bounds = {}
    for trial in explained.trials:
        bounds[trial.remedy.key] = bound_savings(traced.prediction, [trial.remedy], kept)
        assert before - trial.figures.peak.requested <= bounds[trial.remedy.key], trial.remedy.key
    assert bounds["expandable"] == 0
    assert bounds["LoRA"] == before
    assert bounds["outputs"] < bounds["checkpointing"] < before


def test_a_screen_tries_no_remedy_that_saves_little_or_trains_something_else(explained, traced):
    asked = []

    class Asked(Scales):
        def each(self, stages):
            asked.extend(one.key for (one,) in stages)
            return super().each(stages)

        def sort_key(self, trial):
            return 0

        def bound_savings(self, remedies):
            return 0 if remedies[0].key in ("outputs", "in backward") else 1 << 19

    plan = traced.prediction.plan
    advise(Asked(plan, {}), None, most=100)
    offered = {one.key for one in candidates(plan) if one.unfit is None}
    assert offered - {*asked} == {
        *("outputs", "in backward"),  # they save little here
        *("bf16", "bf16, corrected", "LoRA", "QLoRA"),  # they train something else
    }


def test_a_batch_that_is_too_large_is_cut_with_few_runs():
    runs = set()

    class Counted(Scales):
        def each(self, stages):
            for stage in stages:
                cut = [dict(one.changes) for one in stage if one.key == "accumulate"]
                # Settings of the allocator are replayed.
                others = tuple(
                    one.key for one in stage if one.key not in ("expandable", "accumulate")
                )
                runs.add((others, *(tuple(changes.items()) for changes in cut)))
            return super().each(stages)

    plan = Plan(model="m", batch=64)
    rows = [one for one in REMEDIES if one.key in ("expandable", "accumulate")]
    scales = Counted(plan, {})
    found = search(scales, rows, limit_goal((1 << 20) // 3, scales.before))
    assert dict(found.best.remedies[-1].changes) == {"batch": 16, "grad_accum": 4}
    # The smallest micro-batch, the largest that holds, and all of its micro-batches.
    assert len(runs - {((),)}) == 3  # the plan as it is was run before
